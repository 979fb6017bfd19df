"""Numbers that compiled code compares floats with are read off its comparisons, wherever they stand."""

from verifier.machine.ptx.basic_blocks import build
from verifier.machine.ptx.compared import compared_numbers
from verifier.machine.ptx.parser import parse

TEXT = """.version 8.0
.target sm_90
.address_size 64
.visible .entry kernel(.param .f32 x)
{
    .reg .pred %p<3>;
    .reg .f32 %f<9>;
    .reg .b32 %r<3>;
    ld.param.f32 %f1, [x];
    mov.f32 %f2, 0f41200000;
    add.f32 %f3, %f1, 0f3F000000;
    setp.gt.f32 %p1, %f3, %f2;
    max.f32 %f4, %f3, 0fC0490FDB;
    min.f32 %f5, %f4, 0f7F800000;
    mov.b32 %r1, 7;
    setp.lt.s32 %p2, %r1, 9;
    ret;
}
"""


def test_operands_of_comparisons_of_floats_are_found_and_those_of_sums_and_integers_are_not():
    module = parse(TEXT)
    found = compared_numbers(build(module, module.functions["kernel"]))
    assert sorted(found) == [3.1415927410125732, 10.0]
