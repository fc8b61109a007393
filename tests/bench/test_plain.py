import torch

from saccade.bench.plain import depthwise, everywhere, random_tensor, separable


def test_maps_keep_their_size_or_halve_it():
    x = torch.randn(1, 8, 9, 13)
    for layer in (depthwise, separable):
        assert layer(8, 5)(x).shape == x.shape
        assert layer(8, 5, 2)(x).shape == (1, 8, 5, 7)


def test_everywhere_is_attention_to_all_pixels():
    q, k, v = (torch.randn(2, 8, 3, 5) for _ in range(3))
    first = [x[:, :4].flatten(2).mT for x in (q, k, v)]  # of the first head
    a = (first[0] @ first[1].mT / 2).softmax(-1)
    y = everywhere(q, k, v, heads=2)
    torch.testing.assert_close(y[:, :4], (a @ first[2]).mT.reshape(2, 4, 3, 5))


def test_drawn_asks_for_a_gradient_in_training():
    for train in (False, True):
        x = random_tensor(2, 3, train=train, dtype=torch.bfloat16, device="cpu")
        assert (x.shape, x.dtype, x.requires_grad) == ((2, 3), torch.bfloat16, train)
