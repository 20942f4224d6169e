"""Random small Python programs, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Lines = list[str]

_NAMES = st.sampled_from("abc")
_EXPRESSIONS: SearchStrategy[str] = st.recursive(
    _NAMES | st.sampled_from(["0", "1", "1.5", "'s'", "b's'", "None", "True", "...", "2j", "f'{a}x'"]),
    lambda inner: st.one_of(
        st.builds("({} + {})".format, inner, inner),
        st.builds("f({}, k={})".format, inner, inner),
        st.builds("{}.{}".format, _NAMES, st.sampled_from(["append", "pop"])),
        st.builds("[{} for a in {} if {}]".format, inner, inner, inner),
        st.builds("{{{}: {}}}".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("(lambda a: {})".format, inner),
    ),
    max_leaves=5,
)
_SIMPLE: SearchStrategy[Lines] = st.one_of(
    st.builds("{} = {}".format, _NAMES, _EXPRESSIONS),
    st.builds("return {}".format, _EXPRESSIONS),
    st.sampled_from(["pass", "import m", "from m import x", '"""A docstring."""', "# a comment\nb += 1"]),
).map(str.splitlines)


def _compound(bodies: SearchStrategy[Lines]) -> SearchStrategy[Lines]:
    headers = st.one_of(
        st.builds("if {}:".format, _EXPRESSIONS),
        st.builds("while {}:".format, _EXPRESSIONS),
        st.builds("for {} in {}:".format, _NAMES, _EXPRESSIONS),
        st.sampled_from(["def f(a):", "async def g():", "class C:", "else_", "try_"]),
    )

    def lines(header: str, first: list[Lines], second: list[Lines]) -> Lines:
        one, two = ([f"    {line}" for block in blocks for line in block] for blocks in (first, second))
        if header == "else_":
            return ["if a:", *one, "else:", *two]
        if header == "try_":
            return ["try:", *one, "except E:", *two]
        return [header, *one]

    blocks = st.lists(bodies, min_size=1, max_size=3)
    return st.builds(lines, headers, blocks, blocks)


statements: SearchStrategy[Lines] = st.recursive(_SIMPLE, _compound, max_leaves=6)
"""One top-level statement, as lines."""

programs: SearchStrategy[str] = st.lists(statements, max_size=4).map(
    lambda blocks: "\n".join(line for block in blocks for line in block)
)
