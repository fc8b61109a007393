import torch
from torch import nn

from saccade.layers.block import Block, FeedForward, SEBasicBlock
from saccade.layers.position import RPCPE


def test_block_is_two_residual_halves():
    mix, ffn = nn.Linear(6, 6), FeedForward(6, 12)
    block = Block(6, mix, ffn)
    x = torch.randn(2, 6, 3, 4)
    y = x.permute(0, 2, 3, 1)
    y = y + mix(block.mix_norm(y))
    y = y + ffn(block.ffn_norm(y))
    torch.testing.assert_close(block(x), y.permute(0, 3, 1, 2))


def test_positions_act_between_the_linear_layers():
    position = RPCPE(12)
    ffn = FeedForward(6, 12, position)
    x = torch.randn(2, 3, 4, 6)
    wide = position(ffn.widen(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(ffn(x), ffn.narrow(nn.functional.gelu(wide)))


def test_channels_last_goes_through_unchanged():
    block = Block(8, nn.Identity(), FeedForward(8, 16, RPCPE(16)))
    x = torch.randn(2, 8, 6, 5).contiguous(memory_format=torch.channels_last)
    assert block(x).is_contiguous(memory_format=torch.channels_last)


def test_se_block_is_residual_with_a_gate():
    block = SEBasicBlock(32).eval()
    x = torch.randn(2, 32, 5, 5)
    y = block.norm2(block.conv2(torch.relu(block.norm1(block.conv1(x)))))
    gate = block.excite(y)
    assert gate.shape == (2, 32, 1, 1)
    assert ((gate > 0) & (gate < 1)).all()
    torch.testing.assert_close(block(x), torch.relu(x + y * gate))
