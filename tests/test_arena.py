import pytest
import torch

from moetune.device.arena import POISON, Arena


@pytest.fixture
def arena() -> Arena:
    return Arena(torch.device("cpu"), tile_rows=64)


def around(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes before and after a tensor, to the ends of its memory."""
    everything = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    start = tensor.storage_offset() * tensor.element_size()
    return everything[:start], everything[start + tensor.numel() * tensor.element_size() :]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.uint8, torch.int64])
@pytest.mark.parametrize("shape", [(3, 5, 7), (40, 300), (13,), (1, 1), (0, 8)])
def test_a_tensor_is_aligned_contiguous_and_guarded_by_a_tile_of_rows_on_both_sides(arena, shape, dtype):
    tensor = arena.empty("t", shape, dtype)
    assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)
    assert tensor.is_contiguous() and tensor.data_ptr() % 16 == 0
    row = dtype.itemsize * (shape[-1] if len(shape) > 1 else 1)
    for side in around(tensor):
        assert side.numel() >= max(64 * row, 4096)
        assert side.eq(POISON).all()


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("distance", [1, 4096])
def test_a_write_outside_names_the_tensor(arena, end, distance):
    arena.empty("innocent", (8, 8), torch.float32)
    hit = arena.empty("hit", (5, 9), torch.bfloat16)
    assert arena.damaged_guards() == []
    around(hit)[end][-distance if end == 0 else distance - 1] = 0
    assert arena.damaged_guards() == ["hit"]
    arena.fill_guards()
    assert arena.damaged_guards() == []


def test_writing_all_of_a_tensor_damages_nothing(arena):
    for name in ("a", "b"):
        arena.empty(name, (7, 33), torch.bfloat16).zero_()
    assert arena.damaged_guards() == []


def test_guards_may_hold_another_byte_and_are_checked_for_it(arena):
    tensor = arena.empty("t", (4, 4), torch.float32)
    arena.fill_guards(0)
    assert all(side.eq(0).all() for side in around(tensor))
    assert arena.damaged_guards() == []
    around(tensor)[1][0] = POISON
    assert arena.damaged_guards() == ["t"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn])
def test_the_poison_is_nan(arena, dtype):
    assert torch.full((16,), POISON, dtype=torch.uint8).view(dtype).float().isnan().all()


@pytest.mark.parametrize("place", [(0, 0), (4, 6)])
def test_the_checksum_sees_a_changed_operand_but_not_an_output(arena, place):
    """35 elements of two bytes: eight words and six bytes, of which the last element lies among the bytes."""
    operand = arena.empty("operand", (5, 7), torch.bfloat16).fill_(1.0)
    output = arena.empty("output", (5, 7), torch.bfloat16, output=True).fill_(1.0)
    before = arena.checksum()
    output[place] = 2.0
    assert arena.checksum() == before
    operand[place] = 2.0
    assert arena.checksum() != before


def test_a_name_used_again_replaces_the_earlier_tensor(arena):
    first = arena.empty("t", (4, 4), torch.float32)
    second = arena.empty("t", (2, 2), torch.float32)
    around(first)[1][0] = 0
    assert arena.damaged_guards() == []
    around(second)[1][0] = 0
    assert arena.damaged_guards() == ["t"]
