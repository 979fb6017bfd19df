"""Of each read of compiled code it is known which results it may hold."""

from verifier.machine.ptx.basic_blocks import build
from verifier.machine.ptx.parser import parse
from verifier.machine.ptx.reaching_definitions import ReachingDefinitions

PATHS = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry paths(.param .u64 out, .param .u32 n)
{
  .reg .pred %p<3>;
  .reg .b32 %r<9>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [n];
  setp.gt.s32 %p1, %r1, 4;
  mov.u32 %r2, 0;
  @%p1 ld.global.u32 %r2, [%rd1];
  mov.u32 %r3, 1;
  @%p1 bra ELSE;
  mov.u32 %r3, 2;
ELSE:
  mov.u32 %r4, 0;
LOOP:
  add.s32 %r5, %r4, %r2;
  add.s32 %r4, %r5, %r3;
  setp.lt.s32 %p2, %r4, 100;
  @%p2 bra LOOP;
  st.global.u32 [%rd1], %r4;
  ret;
}
"""


def test_each_read_knows_the_results_that_it_may_hold():
    module = parse(PATHS)
    flow = ReachingDefinitions(build(module, module.functions["paths"]))
    lines = [str(instruction.text()) for instruction in flow.instructions]
    at = {
        name: [n for n, i in enumerate(flow.instructions) if name in i.written]
        for name in ("%r2", "%r3", "%r4")
    }
    first, second = (n for n, text in enumerate(lines) if "add.s32" in text)
    assert [len(places) for places in at.values()] == [2, 2, 2]
    assert flow.reaching[first]["%r2"] == {*at["%r2"]}  # a load that its guard may leave out, in one block
    assert flow.reaching[second]["%r3"] == {*at["%r3"]}  # of two paths
    assert flow.reaching[first]["%r4"] == {*at["%r4"]}  # before the loop, or in its last turn
    assert flow.reaching[second]["%r5"] == {first}
    (stored,) = (n for n, text in enumerate(lines) if "st.global" in text)
    assert flow.reaching[stored]["%r4"] == {second}
    assert "%r4" not in flow.reaching[at["%r4"][0]]  # what is written is not read
