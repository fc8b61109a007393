"""Convert boxes and masks in other formats to what saccade reads: `saccade.data.convert.run`."""
