import pytest
import torch
from moetune_kernels.formats import draw_e4m3_blocks, draw_int4, draw_int8, draw_mxfp4, drawing

DRAWS = {
    "mxfp4": draw_mxfp4,
    "int8": draw_int8,
    "e4m3": draw_e4m3_blocks,
    "int4": lambda shape, generator, device, out=None: draw_int4(shape, 32, False, generator, device, out),
    "int4 with zero points": lambda shape, generator, device, out=None: draw_int4(
        shape, 32, True, generator, device, out
    ),
}
EACH = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is b is None or torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@EACH
def test_a_seed_draws_the_same_into_what_it_is_given(draw, monkeypatch):
    monkeypatch.setattr(drawing, "CHUNK", 1000)  # several chunks, the last not full
    shape = (3, 5, 96)
    first = draw(shape, torch.Generator().manual_seed(7), "cpu")
    out = tuple(None if t is None else torch.full_like(t.view(torch.uint8), 255).view(t.dtype) for t in first)
    second = draw(shape, torch.Generator().manual_seed(7), "cpu", out=out)
    other = draw(shape, torch.Generator().manual_seed(8), "cpu")
    assert all(a is b for a, b in zip(second, out, strict=True))
    assert all(same(a, b) for a, b in zip(first, second, strict=True))
    assert not same(first[0], other[0])


@EACH
def test_experts_drawn_one_after_another_differ(draw):
    generator = torch.Generator().manual_seed(7)
    first, second = (draw((1, 8, 128), generator, "cpu") for _ in range(2))
    assert not same(first[0], second[0])


def test_quantiles_of_a_small_sample_repeat_and_of_a_large_one_thin_out():
    assert drawing.quantiles(torch.tensor([3, 1]), 4).tolist() == [1, 1, 3, 3]
    assert drawing.quantiles(torch.arange(12), 4).tolist() == [1, 4, 7, 10]


def test_indices_are_uniform():
    found = drawing.indices((1 << 22) + 3, torch.Generator().manual_seed(0))
    assert (found.dtype, found.numel()) == (torch.int32, (1 << 22) + 3)
    counts = torch.bincount(found, minlength=1 << 16)
    assert counts.numel() == 1 << 16 and counts.min() > 24 and counts.max() < 120
    assert abs(torch.corrcoef(torch.stack([found[:-1], found[1:]]).double())[0, 1].item()) < 0.005


def test_filling_takes_every_entry_of_the_table():
    target = torch.zeros(1 << 20)
    drawing.fill(target, torch.arange(1 << 16).float(), torch.Generator().manual_seed(0))
    assert target.unique().numel() == 1 << 16


def test_filling_never_holds_a_copy_of_the_tensor(monkeypatch):
    monkeypatch.setattr(drawing, "CHUNK", 4096)
    counts = []
    take = drawing.indices
    monkeypatch.setattr(drawing, "indices", lambda count, *rest: counts.append(count) or take(count, *rest))
    for draw in DRAWS.values():
        draw((2, 64, 1024), torch.Generator().manual_seed(0), "cpu")
    assert max(counts) == 4096 and len(counts) > 50


def test_a_tensor_that_is_not_contiguous_is_refused():
    with pytest.raises(RuntimeError):
        drawing.fill(torch.zeros(8, 8).T, torch.zeros(256), torch.Generator())


@pytest.mark.gpu
@EACH
def test_a_gpu_draws_the_same_distribution(draw):
    there = draw((4, 64, 1024), torch.Generator("cuda").manual_seed(0), "cuda")
    here = draw((4, 64, 1024), torch.Generator().manual_seed(0), "cpu")
    for a, b in zip(here, there, strict=True):
        assert a is b is None or b.is_cuda
        if a is not None:
            assert b.float().std().item() == pytest.approx(a.float().std().item(), rel=0.1)
