"""A campaign against saccade: kills, full disks, damage, odd words, strangers' files, bad requests.

    python -m tools.campaign --minutes 5                     all kinds, the time divided among them
    python -m tools.campaign --only kills,ranks --count 100  so many trials of each of these
    python -m tools.campaign --count overrides=50000,images=10000
    python -m tools.campaign --repeat annotations:1000042    one trial again, with its finding

Each trial is drawn from its seed alone. It is right where saccade does what was asked, and also
where it refuses in one sentence; anything else is a finding. `--out FOLDER` gets a line of JSON per
trial (KIND.jsonl) as it ends: after Ctrl-C, or after the campaign itself was killed, the same
command goes on where it stood. At the end there is a table, and exit code 1 if there were findings.
"""
