import dataclasses
import json

import pytest
import torch

from moetune.device import accuracy
from moetune.device.accuracy import calibrate, compare, default_fault, fault
from moetune.kernel import Limits
from moetune.model.trial import Accuracy

LIMITS = {"rel_l2": 0.005, "worst_row": 0.02, "rel_l2_default": 0.005}
CAPS = Limits(floor=1e-3, cap=6e-3)
GOOD = Accuracy(rel_l2=0.002, worst_row=0.003, rel_l2_default=0.001, elements=4096, nonfinite=0)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_error(**changes: float) -> Accuracy:
    return dataclasses.replace(GOOD, **changes)


def test_errors_are_the_ratios_of_their_norms():
    reference = torch.tensor([[3.0, 4.0], [0.0, 5.0]])
    output = torch.tensor([[3.0, 4.0], [0.0, 4.0]])
    found = compare(output, reference, output + torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    assert found.rel_l2 == pytest.approx(1 / 50**0.5)
    assert found.worst_row == pytest.approx(1 / 5)
    assert found.rel_l2_default == pytest.approx(1 / 50**0.5)
    assert (found.elements, found.nonfinite) == (4, 0)


def test_the_same_output_has_no_error():
    reference = noise(9, 17)
    assert compare(reference.clone(), reference, reference) == Accuracy(0.0, 0.0, 0.0, 153, 0)
    assert compare(reference.clone(), reference, None) == Accuracy(0.0, 0.0, 0.0, 153, 0)


def test_a_wrong_tile_in_one_row_of_8192_passes_the_whole_and_fails_the_worst_row():
    reference = noise(8192, 256)
    output = reference * (1 + 1e-3 * noise(8192, 256, seed=1))
    assert fault(compare(output, reference, output), LIMITS) is None
    output[5000, 32:48] = 0
    found = compare(output, reference, reference)
    assert found.rel_l2 < LIMITS["rel_l2"]
    assert found.worst_row > 0.1
    assert fault(found, LIMITS) == f"worst row {found.worst_row:.2g} above 0.02"


def test_a_row_much_smaller_than_the_others_is_measured_against_a_tenth_of_the_median():
    reference = torch.ones(5, 4)
    reference[2] = 1e-6
    output = reference.clone()
    output[2] = 0
    found = compare(output, reference, None)
    assert found.worst_row == pytest.approx(1e-6 / 0.1, rel=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["output", "reference"])
def test_an_element_that_is_not_finite_never_passes(bad, where):
    tensors = {"output": noise(64, 64), "reference": noise(64, 64)}
    tensors[where][3, 5] = bad
    found = compare(tensors["output"], tensors["reference"], noise(64, 64))
    assert found.nonfinite == 1
    loose = dict.fromkeys(LIMITS, 1e9)
    assert fault(found, loose) == "1 of 4096 elements are not finite"
    json.dumps(dataclasses.asdict(found), allow_nan=False)  # a ledger takes it


def test_a_poisoned_row_is_counted_whole():
    output = noise(64, 64)
    output[1] = float("nan")
    assert compare(output, noise(64, 64), None).nonfinite == 64


def test_a_reference_of_zeros_divides_by_no_zero():
    zeros = torch.zeros(4, 8)
    assert compare(zeros, zeros, zeros) == Accuracy(0.0, 0.0, 0.0, 32, 0)
    found = compare(torch.full((4, 8), 1e-30), zeros, zeros)
    assert fault(found, dict.fromkeys(LIMITS, 1e3)) is not None
    json.dumps(dataclasses.asdict(found), allow_nan=False)


def test_zeros_are_wholly_wrong():
    reference = noise(8, 8)
    found = compare(torch.zeros(8, 8), reference, reference)
    assert found.rel_l2 == pytest.approx(1.0)
    assert fault(found, LIMITS) == "rel_l2 1 above 0.005"


def test_values_near_the_end_of_fp32_do_not_overflow():
    big = torch.full((4, 4), 3e38)
    assert compare(-big, big, big).rel_l2 == pytest.approx(2.0)


def test_the_size_of_the_chunks_changes_nothing(monkeypatch):
    reference, default = noise(37, 16), noise(37, 16, seed=1)
    output = reference + 1e-3 * default
    output[36, 3] = float("nan")
    whole = compare(output, reference, default)
    monkeypatch.setattr(accuracy, "_CHUNK", 64)
    assert compare(output, reference, default) == whole


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (GOOD, None),
        (with_error(rel_l2=0.31), "rel_l2 0.31 above 0.005"),
        (with_error(worst_row=0.2), "worst row 0.2 above 0.02"),
        (with_error(rel_l2_default=0.25), "differs from the default's output by 0.25, above 0.005"),
        (with_error(nonfinite=12, rel_l2=0.31), "12 of 4096 elements are not finite"),
    ],
)
def test_a_fault_says_what_is_wrong_and_by_how_much(found, reason):
    assert fault(found, LIMITS) == reason


@pytest.mark.parametrize(
    ("errors", "rel_l2"),
    [([1e-4, 2e-4], 1e-3), ([5e-4, 1e-3, 7e-4], 3e-3), ([2.5e-3, 1e-3], 6e-3)],
    ids=["floor", "three times the largest", "cap"],
)
def test_the_limit_is_three_times_the_defaults_error_between_floor_and_cap(errors, rel_l2):
    found = calibrate([with_error(rel_l2=e, worst_row=e) for e in errors], CAPS)
    assert found["rel_l2"] == pytest.approx(rel_l2)
    assert found["worst_row"] == pytest.approx(4 * rel_l2)
    assert found["rel_l2_default"] == CAPS.versus_default


def test_the_worst_row_may_be_three_times_the_defaults_but_not_four_times_the_cap():
    assert calibrate([with_error(rel_l2=1e-3, worst_row=6e-3)], CAPS)["worst_row"] == pytest.approx(18e-3)
    assert calibrate([with_error(rel_l2=1e-3, worst_row=20e-3)], CAPS)["worst_row"] == pytest.approx(24e-3)


def test_a_default_is_judged_by_the_caps():
    assert default_fault(GOOD, CAPS) is None
    assert default_fault(with_error(rel_l2=0.007), CAPS) == "rel_l2 0.007 above 0.006"
    assert default_fault(with_error(worst_row=0.03), CAPS) == "worst row 0.03 above 0.024"
    assert default_fault(with_error(nonfinite=1), CAPS) == "1 of 4096 elements are not finite"


def test_a_default_without_fault_passes_the_limits_derived_from_it():
    edge = with_error(rel_l2=CAPS.cap, worst_row=CAPS.worst_row * CAPS.cap)
    assert default_fault(edge, CAPS) is None
    assert fault(edge, calibrate([edge], CAPS)) is None
