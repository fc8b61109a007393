"""The equations in plain loops, to test the kernels with; autograd gives their gradients."""

import torch
from torch.nn import functional as F


def local_attention(q, k, v, row, col, heads, window, border):
    """One offset of the window after the other; what lies outside is padded, then masked or not."""
    B, C, H, W = q.shape
    P = window // 2
    split = (B, heads, C // heads)
    q = q.reshape(*split, H, W)
    inside = F.pad(torch.ones(H, W, dtype=torch.bool), [P] * 4)
    k, v = (None if t is None else F.pad(t, [P] * 4).reshape(*split, H + 2 * P, -1) for t in (k, v))
    logits, values = [], []
    for a in range(window):
        for b in range(window):
            here = ..., slice(a, a + H), slice(b, b + W)
            s = 0 if k is None else (q * k[here]).sum(2)
            if row is not None:
                r = torch.cat([row[:, a], col[:, b]], -1)  # tables d
                s = s + (q * r[None, :, :, None, None]).sum(2)
            if border == "mask":
                s = s.masked_fill(~inside[here], -torch.inf)
            logits.append(s)
            values.append(v[here])
    p = torch.stack(logits, -1).softmax(-1)
    return sum(p[..., j, None].movedim(-1, 2) * x for j, x in enumerate(values)).reshape(B, C, H, W)


def aggregate(s, v, rpe, ws, stride, padding, fold):
    """QnA, offset by offset: a softmax over the window for each query, outside left out."""
    k = rpe.shape[0]
    H, W = s.shape[1:3]
    Ho, Wo = ((n + 2 * padding - k) // stride + 1 for n in (H, W))
    border = (0, 0, 0, 0, padding, padding, padding, padding)
    inside = F.pad(torch.ones(H, W, dtype=torch.bool), [padding] * 4)
    s, v = F.pad(s, border), F.pad(v, border)
    logits, values = [], []
    for a in range(k):
        for b in range(k):
            rows = slice(a, a + stride * (Ho - 1) + 1, stride)
            cols = slice(b, b + stride * (Wo - 1) + 1, stride)
            z = s[:, rows, cols] + rpe[a, b]  # B Ho Wo L h
            logits.append(z.masked_fill(~inside[rows, cols, None, None], -torch.inf))
            values.append(v[:, rows, cols])
    p = torch.stack(logits, -1).softmax(-1)  # B Ho Wo L h kk
    if ws is not None:
        p = p * ws.flatten(0, 1).movedim(0, -1)
    each = torch.einsum("byxlhk,kbyxhd->byxlhd", p, torch.stack(values))
    return each.sum(3) if fold else each


def relative(got, want, least=1e-30) -> float:
    """The largest deviation, in units of the largest entry (but of no less than `least`)."""
    return ((got.double() - want).abs().max() / want.abs().max().clamp_min(least)).item()


def gradients(f, tensors, g):
    """Output and gradients of sum(f * g) with respect to the tensors that are there."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
    y = f(*leaves)
    return y, torch.autograd.grad(y, [t for t in leaves if t is not None], g)
