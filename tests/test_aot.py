"""What the kernels are compiled to: no spills, ceilings held; and the tools that find this out, against known code."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parent.parent

# Not on the path of the installed package; and with the root on the path, `kernels` would be a module of its own.
_SPEC = importlib.util.spec_from_file_location("benchmarks", ROOT / "benchmarks" / "__init__.py")
assert _SPEC is not None
sys.modules["benchmarks"] = importlib.util.module_from_spec(_SPEC)

aot = importlib.import_module("benchmarks.aot")
latency = importlib.import_module("benchmarks.latency")
main = importlib.import_module("benchmarks.__main__")
model = importlib.import_module("benchmarks.model")
sass = importlib.import_module("benchmarks.sass")

MODULES = {"boruvka", "components", "cosine", "density", "fused", "merge", "streaming"}
"""Modules of fase_gpu.kernels that ship kernels."""


Report = tuple[int, dict[str, Any], str]
"""Exit status, JSON and output of `python -m benchmarks compile`."""


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Report]:
    """Runs the command where the interpreter is asked for; what has not changed since the last run is not compiled."""
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    folder = tmp_path_factory.mktemp("triton") if cache is None else cache.mkdir("triton")
    if sum(1 for _ in folder.iterdir()) > 2000:
        # Results of older sources, mostly.
        shutil.rmtree(folder)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests"), "TRITON_INTERPRET": "1"}
    environment.setdefault("TRITON_CACHE_DIR", str(folder))

    def run(*arguments: str) -> Report:
        path = tmp_path_factory.mktemp("aot") / "report.json"
        command = [sys.executable, "-W", "error", "-m", "benchmarks", "compile", "--json", str(path), *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=3600, check=False
        )
        assert path.exists(), done.stdout + done.stderr
        return done.returncode, json.loads(path.read_text()), done.stdout + done.stderr

    return run


@pytest.fixture(scope="session")
def shipped_report(report: Callable[..., Report]) -> Report:
    return report()


@pytest.fixture(scope="session")
def faulty_report(report: Callable[..., Report]) -> Report:
    return report("--source", "aot_kernels", "--targets", "sm_90")


@pytest.mark.slow
def test_every_shipped_kernel_compiles_to_what_it_promises(shipped_report: Report) -> None:
    status, written, output = shipped_report
    assert status == 0, output
    found = {entry["name"]: entry for entry in written["kernels"]}
    kernels = aot.shipped()
    assert found.keys() == kernels.keys()
    assert {module.rpartition(".")[2] for module, _ in kernels.values()} == MODULES
    elsewhere = dict.fromkeys((kernel.kernel for _, kernel in kernels.values()), frozenset[str]())
    for name, (_, kernel) in kernels.items():
        entry = found[name]
        elsewhere[kernel.kernel] |= set(entry["compiled"])
        for compiled in entry["compiled"].values():
            assert compiled["failure"] is None, name
            assert compiled["stack"] == 0, name
        compiled, detail = entry["compiled"]["sm_90"], entry["detail"]
        assert detail["spills"] == 0, name
        assert 0 < compiled["registers"] <= kernel.registers, name
        assert compiled["shared"] <= kernel.shared, name
        assert detail["occupancy"]["programs"] > 0, name
        matrix = [opcode for opcode in detail["matrix"] if kernel.mma is None or opcode.startswith(kernel.mma)]
        assert bool(matrix) == (kernel.mma is not None), name
        assert not kernel.wide or sum(detail["wide"].values()) > 0, name
        # A ceiling far above what is there would not see it double.
        assert kernel.registers <= 1.5 * compiled["registers"], name
        predictions = detail["predictions"]
        assert [(p["n"], p["d"]) for p in predictions[::2]] == list(kernel.shapes), name
        assert all(p["nanoseconds"] > 0 for p in predictions), name
        assert all(len(trips) == len(detail["loops"]) for trips in detail["trips"]), name
    assert all(targets == {"sm_90", "sm_80", "sm_100"} for targets in elsewhere.values())


@pytest.mark.parametrize("path", sorted((ROOT / "kernels").glob("*.py")), ids=lambda path: path.stem)
def test_no_module_with_a_kernel_is_left_out(path: Path) -> None:
    if "def shipped(" in path.read_text():
        assert path.stem in MODULES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "problems"),
    [
        ("fine gram", []),
        ("fine nested", []),
        ("spills", ["bytes of stack, expected none", "loads and stores of spilled registers, expected none"]),
        ("does not compile", ["does not compile: "]),
        ("too many registers", ["registers, expected at most 16"]),
        ("too much shared memory", ["4096 bytes of shared memory, expected at most 1024"]),
        ("other matrix instruction", ["no HGMMA instruction, got HMMA.16816.F32.BF16"]),
        ("unexpected matrix instruction", ["HMMA.16816.F32.BF16, expected no matrix instruction"]),
        ("narrow loads", ["no 128-bit loads, expected some"]),
        ("trips of two loops", ["trips: expected one number for each of the loops, of which there are 1, got 2"]),
        ("trips below 0", ["trips: expected finite numbers, none below 0, got (-1,)"]),
        ("trips that fail", ["ZeroDivisionError: "]),
    ],
)
def test_a_broken_promise_is_a_problem(faulty_report: Report, name: str, problems: list[str]) -> None:
    status, written, output = faulty_report
    assert status == 1
    (entry,) = (entry for entry in written["kernels"] if entry["name"] == name)
    assert len(entry["problems"]) == len(problems)
    for found, expected in zip(entry["problems"], problems, strict=True):
        assert found.startswith("sm_90: ")
        assert expected in found
        assert f"{name}: {found}" in output


@pytest.mark.slow
def test_every_problem_is_tried(faulty_report: Report) -> None:
    tried = test_a_broken_promise_is_a_problem.pytestmark[0].args[1]
    assert {entry["name"] for entry in faulty_report[1]["kernels"]} == {name for name, _ in tried}


@pytest.mark.slow
def test_trips_that_do_not_fit_are_told_with_the_loops(faulty_report: Report) -> None:
    lines = faulty_report[2].splitlines()
    (at,) = (index for index, line in enumerate(lines) if line.startswith("trips of two loops (aot_kernels)"))
    assert lines[at].endswith(": 1 loop")
    assert "instructions of aot_kernels.py:" in lines[at + 1]
    assert "HMMA.16816.F32.BF16 x 16" in lines[at + 1]


@pytest.mark.slow
def test_a_kernel_that_is_fine_passes_for_every_target(report: Callable[..., Report]) -> None:
    options = ("--source", "aot_kernels", "--filter", "GRAM fine", "--shapes", "10x768,17x768")
    status, written, output = report(*options)
    assert status == 0, output
    (entry,) = written["kernels"]
    assert [compiled["target"] for compiled in entry["compiled"].values()] == [90, 80, 100]
    # A task of 17 samples does not fit a kernel whose N is 16.
    assert [(p["device"], p["n"], p["d"]) for p in entry["detail"]["predictions"]] == [
        ("H100", 10, 768),
        ("H200", 10, 768),
    ]
    assert entry["detail"]["trips"] == [[6]]
    assert "problems: none" in output
    assert "fine gram" in output


@pytest.mark.slow
def test_a_compiler_that_dies_costs_one_kernel(report: Callable[..., Report]) -> None:
    status, written, output = report("--source", "aot_fatal", "--targets", "sm_90")
    assert status == 1
    assert [entry["problems"] for entry in written["kernels"]] == [
        [],
        ["sm_90: does not compile: the compiler ended its process"],
        [],
    ]
    assert "problems: 1" in output


@pytest.mark.slow
def test_loops_of_a_compiled_kernel(faulty_report: Report) -> None:
    details = {entry["name"]: entry["detail"] for entry in faulty_report[1]["kernels"]}
    (loop,) = details["fine gram"]["loops"]
    assert (loop["parent"], loop["depth"]) == (None, 0)
    outer, inner, alone = details["fine nested"]["loops"]
    assert [loop["parent"] for loop in (outer, inner, alone)] == [None, 0, None]
    assert [loop["depth"] for loop in (outer, inner, alone)] == [0, 1, 0]
    assert outer["first"] <= inner["first"] < inner["last"] < outer["last"] < alone["first"]
    # The exponential of four numbers a thread is in the inner loop alone, the square root in the last.
    assert inner["opcodes"]["MUFU.EX2"] == 4
    assert alone["opcodes"]["MUFU.SQRT"] == 4
    assert "MUFU.EX2" not in outer["opcodes"]
    # 10 trips of the outer loop, 5 of the inner one each time, 7 of the last.
    (h100, h200, *_) = details["fine nested"]["predictions"]
    assert h100["units"]["special"] == pytest.approx(2 * (10 * 5 * 4 + 7 * 4) / (132 * 1.755))
    assert h100["units"]["special"] == h200["units"]["special"]


LISTING = """
	.section	.text._other,"ax",@progbits
.text._other:
        /*0000*/                   EXIT ;
	.section	.text._kernel,"ax",@progbits
_kernel:
.text._kernel:
	//## File "/x/kernel.py", line 10
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/              @!P0 BRA `(.L_x_0) ;
	//## File "/y/triton/language/standard.py", line 287 inlined at "/y/triton/language/standard.py", line 314
	//## File "/y/triton/language/standard.py", line 314 inlined at "/x/stage.py", line 7
	//## File "/x/stage.py", line 7 inlined at "/x/kernel.py", line 12
.L_x_1:
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/                   BRA.DIV UR5, `(.L_x_5) ;
	//## File "/x/kernel.py", line 13
.L_x_2:
        /*0040*/                   FADD R4, R4, R5 ;
	//## File "/x/kernel.py", line 15
        /*0050*/               @P0 BRA P1, `(.L_x_2) ;
        /*0060*/                   CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div_s64) ;
        /*0070*/                   CALL.REL.NOINC `($__internal_1_$__cuda_sm20_sqrt_rn_f32_slowpath) ;
        /*0080*/                   BRA.U UP0, `(.L_x_1) ;
.L_x_0:
        /*0090*/              @!P0 EXIT ;
        /*00a0*/                   STG.E desc[UR4][R2.64], R4 ;
        /*00b0*/                   EXIT ;
.L_x_5:
        /*00c0*/                   SHFL.BFLY PT, R4, R4, 0x1, 0x1f ;
        /*00d0*/                   BRA `(.L_x_2) ;
$__internal_0_$__cuda_sm20_div_s64:
        /*00e0*/                   I2F.U64.RP R8, R10 ;
        /*00f0*/                   RET.REL.NODEC R18 `(_kernel) ;
$__internal_1_$__cuda_sm20_sqrt_rn_f32_slowpath:
        /*0100*/                   MUFU.RSQ R8, R10 ;
        /*0110*/                   RET.REL.NODEC R18 `(_kernel) ;
.L_x_9:
        /*0120*/                   BRA `(.L_x_9);
        /*0130*/                   NOP;
"""


def test_a_listing_is_read_as_blocks_loops_and_counts() -> None:
    code = sass.parse(LISTING, "_kernel")
    outer, inner = code.loops
    assert (outer.first, outer.last, outer.parent, outer.depth, outer.instructions) == (0x20, 0x80, None, 0, 5)
    assert (inner.first, inner.last, inner.parent, inner.depth, inner.instructions) == (0x40, 0x50, 0, 1, 2)
    assert inner.lines == "kernel.py:13,15"
    assert outer.lines == "stage.py:7 kernel.py:15"
    # Neither the padding behind the end, nor the other kernel, nor the path of warps that have parted.
    assert "NOP" not in code.opcodes
    assert code.opcodes["EXIT"] == 2
    executed = code.executed((3, 5))
    assert executed["S2R"] == 1
    assert executed["LDG.E.128"] == 3
    assert executed["FADD"] == 15
    assert executed["BRA"] == 1 + 15
    assert executed["I2F.U64.RP"] == 3
    assert executed["MUFU.RSQ"] == 0
    assert "SHFL.BFLY" not in executed
    assert code.executed((0, 5))["FADD"] == 0
    assert code.executed((0.5, 4))["FADD"] == 2


def test_trips_and_names_that_do_not_fit_the_code_are_refused() -> None:
    code = sass.parse(LISTING, "_kernel")
    with pytest.raises(sass.SassError, match=r"each of the loops, of which there are 2, got 1"):
        code.executed((3,))
    with pytest.raises(sass.SassError, match=r"^_kernels: not among the functions of the code: _other, _kernel$"):
        sass.parse(LISTING, "_kernels")
    with pytest.raises(sass.SassError, match="goes to no label"):
        sass.parse(LISTING.replace("BRA.U UP0, `(.L_x_1)", "BRX R2 -0x10"), "_kernel")
    with pytest.raises(sass.SassError, match="goes to no label"):
        sass.parse(LISTING.replace("BRA.U UP0, `(.L_x_1)", "CALL.ABS.NOINC R2"), "_kernel")


@pytest.mark.parametrize(
    ("branches", "spans", "parents"),
    [
        # Block i ends with a branch to the block given and falls through to i + 1; block 5 is the end.
        ({}, [], []),
        ({2: 2}, [(2, 2)], [None]),
        ({3: 1}, [(1, 3)], [None]),
        ({2: 1, 4: 3}, [(1, 2), (3, 4)], [None, None]),
        ({2: 2, 3: 1}, [(1, 3), (2, 2)], [None, 0]),
        # Two jumps to one head: the shorter way round is a loop inside.
        ({2: 1, 4: 1}, [(1, 4), (1, 2)], [None, 0]),
        ({2: 2, 3: 2, 4: 1}, [(1, 4), (2, 3), (2, 2)], [None, 0, 1]),
    ],
)
def test_loops_of_a_flow(branches: dict[int, int], spans: list[tuple[int, int]], parents: list[int | None]) -> None:
    lines = ['\t.section\t.text.k,"ax",@progbits', ".text.k:"]
    for block in range(6):
        lines.append(f".L_{block}:")
        lines.append(f"        /*{block * 32:04x}*/                   FADD R1, R1, R2 ;")
        jump = f"@P0 BRA `(.L_{branches[block]})" if block in branches else "NOP"
        lines.append(f"        /*{block * 32 + 16:04x}*/               {'EXIT' if block == 5 else jump} ;")
    loops = sass.parse("\n".join(lines), "k").loops
    assert [(loop.first // 32, loop.last // 32) for loop in loops] == spans
    assert [loop.parent for loop in loops] == parents


def test_ways_round_that_overlap_are_one_loop() -> None:
    # 1 goes to 2 or 3, and each of those back to 1 or on.
    flow = {0: {1}, 1: {2, 3}, 2: {1, 4}, 3: {1, 4}, 4: set()}
    graph = {block: frozenset(following) for block, following in flow.items()}
    assert sass._bodies(graph, 0) == [frozenset({1, 2, 3})]
    # A cycle that is entered at two blocks is a loop from the first of them.
    graph = {block: frozenset(f) for block, f in {0: {1, 2}, 1: {2}, 2: {1, 3}, 3: set()}.items()}
    assert sass._bodies(graph, 0) == [frozenset({1, 2})]


@pytest.mark.parametrize(
    ("opcode", "unit", "cycles"),
    [
        ("IADD3.X", "alu", 0.5),
        ("FMNMX", "alu", 0.5),
        ("IMAD.WIDE.U32", "imad", 0.5),
        ("DFMA.RM", "fp64", 0.5),
        ("MUFU.EX2", "special", 2.0),
        ("F2F.F64.F32", "special", 2.0),
        ("SHFL.BFLY", "lsu", 1.0),
        ("LDS", "lsu", 1.0),
        ("LDS.64", "lsu", 2.0),
        ("LDGSTS.E.BYPASS.128", "lsu", 4.0),
        ("LDG.E.U8", "lsu", 1.0),
        ("LDSM.16.M88.4", "lsu", 4.0),
        ("LDSM.16.MT88.2", "lsu", 2.0),
        ("LDSM.16.M88", "lsu", 1.0),
        ("FFMA", None, 0.0),
        ("HFMA2.MMA", None, 0.0),
        ("UIADD3", None, 0.0),
        ("BRA", None, 0.0),
    ],
)
def test_units_of_instructions(opcode: str, unit: str | None, cycles: float) -> None:
    assert model.cycles(opcode) == (unit, cycles)


def test_matrix_instructions_by_their_shape() -> None:
    h100 = model.H100
    assert model.matrix_seconds("HMMA.16816.F32.BF16", h100) == pytest.approx(2 * 16 * 8 * 16 / 620e12)
    assert model.matrix_seconds("HMMA.1688.F32.TF32", h100) == pytest.approx(2 * 16 * 8 * 8 / 310e12)
    assert model.matrix_seconds("HMMA.16816.F16", h100) == pytest.approx(2 * 16 * 8 * 16 / 620e12)
    assert model.matrix_seconds("DMMA.884", h100) == pytest.approx(2 * 8 * 8 * 4 / 67e12)
    assert model.matrix_seconds("HGMMA.64x128x16.F32.BF16", h100) == pytest.approx(2 * 64 * 128 * 16 / 4 / 989e12)
    assert model.matrix_seconds("HGMMA.64x64x8.F32.TF32", h100) == pytest.approx(2 * 64 * 64 * 8 / 4 / 494.5e12)
    assert model.matrix_seconds("FFMA", h100) == model.matrix_seconds("HFMA2.MMA", h100) == 0
    with pytest.raises(ValueError, match=r"^QMMA.16832: a matrix instruction whose rate is not known$"):
        model.matrix_seconds("QMMA.16832", h100)


def test_prediction_against_sums_by_hand() -> None:
    # 1000 warp instructions a task: two warps of half a program each.
    executed = {"FFMA": 600.0, "MUFU.EX2": 300.0, "SHFL.BFLY": 100.0}
    work = model.Work(10, 384, executed, warps=2, programs=0.5, traffic=3350.0, clocks=4000.0, resident=16)
    prediction = model.predict(work, model.H100)
    sm_clocks = 132 * 1.755
    assert prediction.units == pytest.approx(
        {"memory": 1.0, "issue": 250 / sm_clocks, "special": 600 / sm_clocks, "lsu": 100 / sm_clocks}
    )
    assert (prediction.limit, prediction.device, prediction.n, prediction.d) == ("special", "H100", 10, 384)
    assert prediction.nanoseconds == pytest.approx(600 / 231.66)
    assert prediction.bandwidth == pytest.approx(231.66 / 600)
    assert prediction.instructions == 1000
    # 16 programs, of two tasks each, in 4000 clocks of each SM.
    assert prediction.latency == pytest.approx(4000 / 32 / sm_clocks)
    # More bytes, and the memory is the limit; that of an H200 is 4.8 / 3.35 times as fast.
    slow = [model.predict(replace(work, traffic=33_500.0), device) for device in (model.H100, model.H200)]
    assert [p.limit for p in slow] == ["memory", "memory"]
    assert [p.bandwidth for p in slow] == [1.0, 1.0]
    assert slow[0].nanoseconds == pytest.approx(10.0)
    assert slow[1].nanoseconds == pytest.approx(10 * 3.35 / 4.8)
    # DESIGN 5: 1000 grid points and 9 edges a task are 9,000 exponentials, 2.4 ns.
    density = model.Work(10, 384, {"MUFU.EX2": 9000 / 32}, warps=1, programs=1.0, traffic=0.0)
    assert model.predict(density, model.H100).nanoseconds == pytest.approx(2.4, abs=0.05)


def clocks(instructions: list[str], trips: tuple[float, ...] = ()) -> float:
    """Clocks of a program of these instructions and labels."""
    lines = ['\t.section\t.text.k,"ax",@progbits', ".text.k:"]
    for index, text in enumerate([*instructions, "EXIT"]):
        lines.append(text if text.endswith(":") else f"        /*{16 * index:04x}*/                   {text} ;")
    return float(latency.program_clocks(sass.parse("\n".join(lines), "k"), trips))


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        # The last instruction, EXIT, is issued at once and takes a clock.
        (["FFMA R1, R2, R3, R4", "FFMA R5, R6, R7, R8"], 3),
        (["FFMA R1, R2, R3, R4", "FFMA R5, R1, R7, R8"], 6),
        (["FFMA R1, R2, R3, R4", "@P0 FFMA R5, R6, R1, R8"], 6),
        # A quarter of an SM has 16 lanes for integers, 4 for special functions.
        (["IADD3 R1, R2, R3, RZ", "IADD3 R4, R5, R6, RZ"], 4),
        (["MUFU.EX2 R1, R2", "MUFU.EX2 R3, R4"], 10),
        (["MUFU.EX2 R1, R2", "FADD R3, R1, R4"], 20),
        # Results behind a predicate, carries, and predicates that are read.
        (["SHFL.BFLY PT, R1, R2, 0x1, 0x1f", "FADD R3, R1, R4"], 24),
        (["SHFL.BFLY PT, R1, R2, 0x1, 0x1f", "FADD R3, R2, R4"], 3),
        (["IADD3 R1, P0, R2, R3, RZ", "@P0 FADD R3, R7, R4"], 6),
        (["ISETP.GE.AND P1, PT, R2, R3, PT", "SEL R4, R5, R6, !P1"], 6),
        # Loads of several registers; shared, cached and device memory.
        (["LDS.128 R4, [R2]", "FADD R1, R7, R1"], 31),
        (["LDS.64 R4, [R2]", "FADD R1, R7, R1"], 3),
        (["LDG.E R4, desc[UR4][R2.64]", "FADD R1, R4, R1"], 262),
        (["LDG.E.128 R4, desc[UR4][R2.64]", "FADD R1, R6, R1"], 482),
        (["LDSM.16.M88.4 R4, [R2]", "HMMA.16816.F32.BF16 R8, R4, R12, R8", "FADD R1, R11, R1"], 29 + 33 + 2),
        (["STS [R1], R2", "FADD R1, R1, R3"], 3),
        # Copies: of two groups, all but one have to be there.
        (["LDGSTS.E.128 [R1], desc[UR4][R2.64]", "LDGDEPBAR", "DEPBAR.LE SB0, 0x0"], 482),
        (["LDGSTS.E.128 [R1], desc[UR4][R2.64]", "LDGDEPBAR", "DEPBAR.LE SB0, 0x1"], 4),
    ],
)
def test_clocks_of_a_program(instructions: list[str], expected: int) -> None:
    assert clocks(instructions) == expected


def test_clocks_of_loops() -> None:
    # A trip: the sum waits for the one of the trip before.
    loop = [".L_1:", "FADD R1, R1, R2", "@P0 BRA `(.L_1)"]
    assert [clocks(loop, (trips,)) for trips in (0, 1, 2, 3, 100)] == [1, 3, 7, 11, 399]
    assert clocks(loop, (2.5,)) == 9
    nested = [".L_0:", "FADD R5, R5, R6", *loop, "@P1 BRA `(.L_0)"]
    assert clocks(nested, (10, 100)) == pytest.approx(10 * 400, rel=0.02)
    # A subroutine is followed where it is called; one for rare operands is not.
    for name, expected in (("$__cuda_sm20_div_s64", 1 + 18 + 2 + 1), ("$__cuda_sm20_sqrt_rn_f32_slowpath", 2)):
        text = [f"CALL.REL.NOINC `({name})", "EXIT", f"{name}:", "MUFU.RSQ R1, R2", "FADD R3, R1, R1"]
        text.append("RET.REL.NODEC R4 `(k)")
        assert clocks(text) == expected


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "programs", "limit"),
    [
        (32, 0, 1, 32, "programs"),
        (32, 0, 4, 16, "warps"),
        # 72 * 32 = 2304 registers a warp, 7 warps in each quarter of 16,384.
        (72, 0, 1, 28, "registers"),
        (65, 0, 1, 28, "registers"),
        (255, 0, 4, 2, "registers"),
        # (65,536 + 1,024) * 3 <= 233,472 < 4 times that.
        (32, 65_536, 4, 3, "shared memory"),
        (32, 227 * 1024, 4, 1, "shared memory"),
        (32, 228 * 1024, 4, 0, "shared memory"),
    ],
)
def test_occupancy_against_the_limits_by_hand(
    registers: int, shared: int, warps: int, programs: int, limit: str
) -> None:
    found = model.occupancy(registers, shared, warps)
    assert (found.programs, found.warps, found.limit) == (programs, programs * warps, limit)


def test_two_kernels_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("aot_kernels")
    kernel = module.shipped()[0]
    monkeypatch.setattr(module, "shipped", lambda: [kernel, kernel])
    with pytest.raises(ValueError, match=r"^aot_kernels: 'fine gram' is also the name of a kernel of aot_kernels$"):
        aot.shipped("aot_kernels")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--targets", "hopper"], "expected targets such as sm_90,sm_80, got 'hopper'"),
        (["--shapes", "10"], "expected samples x dimensions such as 10x384,50x768, got '10'"),
        (["--filter", "nothing"], "has 'nothing' in its name; there are: fine gram"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main.app, ["compile", "--source", "aot_kernels", *arguments])
    assert done.exit_code == 2
    assert message in done.output.replace("\n", " ")


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    with aot._environment():
        assert "TRITON_INTERPRET" not in os.environ
        assert Path(os.environ["TRITON_CACHE_DIR"]).is_dir()
    assert os.environ["TRITON_INTERPRET"] == "1"
    assert "TRITON_CACHE_DIR" not in os.environ
