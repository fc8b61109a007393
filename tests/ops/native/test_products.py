"""Kernels that serve inference alone: convolutions, windows, and products of bfloat16."""

import pytest
import torch
from torch.nn import functional as F

from saccade.ops import native
from saccade.ops import window as window_ops
from saccade.ops.native.call import Linear, Windows, pointer, run
from saccade.ops.native.pixels import PixelProduct, ReadyConvolution
from saccade.ops.native.residual import Norm, packed
from saccade.ops.native.walk import Recorder
from tests.ops.native.oracle import relative

pytestmark = pytest.mark.skipif(not native.available(), reason=native.where())


@pytest.fixture(params=native.INSTRUCTION_SETS)
def instruction_set(request):
    try:
        native.use(request.param)
    except ValueError:
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    native.use("")


def convolution(weight, bias, stride, padding, norm=None, relu=False, mean=False):
    matrix = lambda: (weight.permute(0, 2, 3, 1).flatten(1), bias)  # noqa: E731
    product = PixelProduct(len(weight), weight[0].numel(), [weight], matrix, relu)
    return ReadyConvolution(product, weight.shape[2], stride, padding, norm, mean)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("C", "D", "kernel", "stride", "padding"), [
    (3, 32, 7, 4, 3), (3, 33, 7, 2, 3), (24, 50, 3, 2, 1), (70, 20, 3, 1, 1), (5, 64, 4, 4, 0),
    (16, 96, 1, 2, 0), (64, 48, 1, 1, 0), (130, 17, 3, 2, 1),
])  # fmt: skip
def test_a_convolution(instruction_set, half, C, D, kernel, stride, padding):
    torch.manual_seed(0)
    x = torch.randn(2, C, 16, 12)
    weight, bias = torch.randn(D, C, kernel, kernel) / (C * kernel**2) ** 0.5, torch.randn(D)
    scale, offset = torch.randn(D), torch.randn(D)
    y = F.conv2d(x.double(), weight.double(), bias.double(), stride, padding).permute(0, 2, 3, 1)
    normed = F.layer_norm(y, (D,), scale.double(), offset.double(), 1e-5)
    skip = torch.randn(y.shape)
    bound = 2e-2 if half else 1e-5
    with Recorder(half), torch.inference_mode():
        for lying in (x, x.contiguous(memory_format=torch.channels_last)):
            pixels = lying.permute(0, 2, 3, 1)
            plain = convolution(weight, bias, stride, padding)(pixels)
            assert relative(plain, y) <= bound
            own = convolution(weight, bias, stride, padding, Norm(scale, offset, 1e-5))
            assert relative(own(pixels), normed) <= bound
            added = convolution(weight, bias, stride, padding, relu=True)(pixels, skip)
            assert relative(added, (y + skip).relu()) <= bound


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("H", "W"), [(8, 6), (7, 9), (1, 1)])
def test_the_mean_of_pixels_before_a_product(instruction_set, stride, H, W):
    torch.manual_seed(0)
    x, shift = torch.randn(2, H, W, 37), torch.randn(37)
    weight = torch.randn(20, 37, 1, 1)
    y = F.avg_pool2d(
        x.double().permute(0, 3, 1, 2), stride, stride, ceil_mode=True, count_include_pad=False
    )
    y = F.conv2d((y + shift.double()[:, None, None]).relu(), weight.double()).permute(0, 2, 3, 1)
    with torch.inference_mode():
        own = convolution(weight, None, stride, 0, mean=True)(x, None, shift)
    assert relative(own, y) <= 1e-5


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("H", "W", "window", "heads", "C"), [
    (14, 14, 14, 2, 64), (9, 13, 4, 3, 48), (7, 7, 7, 1, 20), (5, 6, 8, 2, 32), (1, 1, 1, 1, 8),
])  # fmt: skip
def test_attention_in_windows(instruction_set, half, H, W, window, heads, C):
    torch.manual_seed(0)
    qkv, table = torch.randn(2, H, W, 3 * C), torch.randn((2 * window - 1) ** 2, heads)
    want = window_ops.windowed(qkv.double(), table.double(), window)
    h, w = min(H, window), min(W, window)
    bias, y = window_ops.bias_of(table, window, h, w).contiguous(), torch.empty(2, H, W, C)
    results = []
    for threads in (1, 2):
        call = Windows(threads, 2, H, W, C, heads, h, w, half)
        call.qkv, call.bias, call.y = map(pointer, (qkv, bias, y))
        run("saccade_windows_forward", call)
        results.append(y.clone())
    assert relative(y, want) <= (3e-2 if half else 1e-5)
    assert torch.equal(*results)


@pytest.mark.parametrize(("M", "K", "N"), [(1, 1, 1), (97, 33, 50), (200, 400, 64), (49, 770, 48)])
def test_products_of_bfloat16_are_summed_in_fp32(instruction_set, M, K, N):
    torch.manual_seed(0)
    x, w, b = torch.randn(M, K), torch.randn(N, K), torch.randn(N)
    x, w = x.bfloat16().float(), w.bfloat16().float()  # so that rounding them changes nothing
    matrix, y = Linear(1, 1, 1, K, N), torch.empty(M, N)
    matrix.w, matrix.w_output, matrix.w_input, matrix.b = pointer(w), K, 1, pointer(b)
    matrix.half = 1
    room = packed("linear", matrix)
    call = Linear(2, 1, M, K, N)
    call.x, call.y, call.packed, call.half = pointer(x), pointer(y), pointer(room), 1
    run("saccade_linear_forward", call)
    assert relative(y, x.double() @ w.double().mT + b.double()) <= 1e-5


@pytest.mark.parametrize("half", [False, True])
def test_every_count_of_rows_and_columns(instruction_set, half):
    """Tiles of several sizes, and of columns that fill their vectors or do not."""
    torch.manual_seed(0)
    K = 70
    for N in (3, 16, 29, 32, 48, 75, 112):
        w, b = torch.randn(N, K), torch.randn(N)
        if half:
            w = w.bfloat16().float()
        matrix = Linear(1, 1, 1, K, N)
        matrix.w, matrix.w_output, matrix.w_input, matrix.b = pointer(w), K, 1, pointer(b)
        matrix.half = half
        room = packed("linear", matrix)
        for M in (*range(1, 31), 49, 97, 110):
            x, skip = torch.randn(M, K), torch.randn(M, N)
            if half:
                x = x.bfloat16().float()
            y = torch.full((M + 1, N), 7.0)
            call = Linear(1, 1, M, K, N)
            call.x, call.y, call.packed, call.half = pointer(x), pointer(y), pointer(room), half
            call.skip = pointer(skip)
            run("saccade_linear_forward", call)
            want = skip.double() + x.double() @ w.double().mT + b.double()
            assert relative(y[:M], want) <= 1e-5, (M, N)
            assert y[M].eq(7).all(), (M, N)  # nothing behind the last row is written
