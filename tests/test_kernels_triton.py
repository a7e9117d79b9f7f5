import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

CASES = ["rows that do not fill a tile", "one token", "experts without rows", "one expert with all rows"]


@cache
def interpreted(kernel: str) -> dict[str, dict]:
    script = Path(__file__).with_name("interpreted.py")
    done = subprocess.run(
        [sys.executable, str(script), kernel],
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("kernel", ["bf16", "a8w4"])
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("case", CASES)
class TestGroupedKernel:
    def test_every_stage_agrees_with_the_reference(self, kernel, case, prefetch):
        errors = interpreted(kernel)[f"{case}, prefetch {prefetch}"]["errors"]
        # bf16 rounding of the output alone gives 1.7e-3; stage 1 is compared with the rounded reference
        limits = {"1": 1e-3, "2": 2.5e-3, "3": 3.5e-3}
        assert {stage for stage, error in errors.items() if not error < limits[stage]} == set()

    def test_rows_are_sorted_stably_and_tiles_mapped(self, kernel, case, prefetch):
        facts = interpreted(kernel)[f"{case}, prefetch {prefetch}"]
        assert facts["order"]
        assert facts["tiles"]

    def test_nothing_outside_the_outputs_is_written(self, kernel, case, prefetch):
        facts = interpreted(kernel)[f"{case}, prefetch {prefetch}"]
        assert facts["damaged"] == []
        assert facts["operands kept"]

    def test_combine_is_bitwise_the_same_run_to_run(self, kernel, case, prefetch):
        assert interpreted(kernel)[f"{case}, prefetch {prefetch}"]["combine repeats"]

    def test_operands_of_another_bucket_share_the_weights(self, kernel, case, prefetch):
        assert interpreted(kernel)[f"{case}, prefetch {prefetch}"]["weights shared"]


def test_the_device_quantises_as_formats_does_bit_by_bit():
    assert interpreted("a8w4")["quantise"] == {"codes": True, "signs": True, "scales": True}
