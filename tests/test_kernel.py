"""Kernels by name, and the variants that launch each expert alone."""

from __future__ import annotations

import pytest

from moetune.catalog import load_shape
from moetune.choosing import choose_kernels, choose_problems
from moetune.errors import KernelError, UsageError
from moetune.kernel import LOOP, kernel_names, load_kernel
from moetune.model.format import FORMATS
from moetune.model.problem import Problem
from moetune.model.routing import Routing
from moetune.targets import load_target

H200 = load_target("h200")
QWEN = "qwen3.5-397b-a17b"


def chosen(*kernels: str, shape: str = QWEN, eps: tuple[int, ...] = ()) -> tuple[Problem, ...]:
    """Return the problems of 64 tokens at TP 1 that a command with kernels gives."""
    found = choose_kernels(kernels, [load_shape(shape)], H200)
    return choose_problems([shape], [1], [64], [Routing()], found, H200, named=bool(kernels), eps=eps)[0]


@pytest.mark.parametrize("name", ["bf16", "w4a16", "w8a8_int8"])
def test_a_loop_is_its_kernel_under_another_name(name: str) -> None:
    plain, loop = load_kernel(name), load_kernel(name + LOOP)
    assert loop.name == name + LOOP
    assert (loop.format, loop.limits, loop.implementation) == (plain.format, plain.limits, plain.implementation)
    assert loop.axes(1) == plain.axes(1) and loop.source_hash() == plain.source_hash()


def test_names_are_those_of_the_kernels_installed_and_of_no_loop() -> None:
    assert set(FORMATS) | {"cpu"} == set(kernel_names())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bf17", "no kernel 'bf17': did you mean 'bf16'?"),
        ("bf17-loop", "no kernel 'bf17-loop': did you mean 'bf16'?"),
        ("bf16-loop-loop", "no kernel 'bf16-loop-loop': did you mean"),
        ("cpu-loop", "no kernel 'cpu-loop': kernel 'cpu' has no launches expert by expert; name 'cpu'"),
        ("-loop", "no kernel '-loop': known: "),
    ],
)
def test_a_name_of_none_is_one_line(name: str, said: str) -> None:
    with pytest.raises(KernelError) as caught:
        load_kernel(name)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_a_loop_is_a_problem_of_its_own_in_its_kernels_format() -> None:
    grouped, loop = chosen("w4a16", "w4a16-loop")
    assert (loop.kernel, loop.format) == ("w4a16-loop", grouped.format)
    assert loop.key == f"{QWEN}/tp1/w4a16-loop/t64/uniform"


@pytest.mark.parametrize("name", ["a8w4", "a16w4", "fp8_block", "w4a16", "w8a8_int8", "w4a8_int8", "bf16"])
def test_a_kernel_named_is_tuned_whether_or_not_the_shapes_file_lists_its_format(name: str) -> None:
    assert [problem.format for problem in chosen(name)] == [name]


def test_without_names_the_formats_of_the_shapes_file_decide() -> None:
    assert {problem.kernel for problem in chosen()} == set(load_shape(QWEN).formats)


def test_each_expert_parallel_degree_is_a_problem_and_must_divide_the_experts() -> None:
    assert [problem.ep for problem in chosen("bf16", eps=(1, 8))] == [1, 8]
    assert [problem.ep for problem in chosen("bf16")] == [1]
    with pytest.raises(UsageError, match=r"^--ep 3: does not divide the 512 experts of qwen3"):
        chosen("bf16", eps=(1, 3))
