"""A graph that is still being built has the normal form that it has when it is whole."""

import numpy as np
import pytest

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Builder
from verifier.arithmetic.graph.growing_form import GrowingForm, SharingBuilder
from verifier.arithmetic.graph.normal_form import Normaliser

FORMATS = {"x": "f32", "h": "f16"}


def built(builder):
    """Append some of everything: constants, signs, formats, and a product that is fused into a sum."""
    x = builder.append("input:x", value=np.arange(6).reshape(2, 3))
    h = builder.append("cvt.f32.f16", builder.append("input:h", value=np.arange(3)))
    zero, two = (builder.append("literal:f32", value=np.array([bits])) for bits in (0, 0x40000000))
    half = builder.append("div.rn.f32", builder.append("sub.rn.f32", x, h), two)
    fused = builder.append("fma.rn.f32", half, half, builder.append("add.rn.f32", x, zero))
    wrong = builder.append("add.rn.f16", x, x)
    return {"fused": fused, "half": half, "wrong": wrong}


@pytest.mark.parametrize("claims", ["E", "EZ", "EZF", "EZFC"])
def test_terms_are_those_of_the_whole_graph(claims):
    terms, builder = SharedTerms(), Builder()
    form = GrowingForm(builder, Normaliser(terms, claims), FORMATS)
    first = built(builder)
    early = form.edges(first["half"])
    more = builder.append("mul.rn.f32", first["fused"], first["half"])
    late = form.edges(more)
    whole = Normaliser(terms, claims).normal(builder.graph({"half": first["half"], "more": more}, FORMATS))
    assert np.array_equal(early, whole.outputs["half"])
    assert np.array_equal(late, whole.outputs["more"])


def test_what_is_of_another_format_than_is_read_equals_nothing():
    builder = Builder()
    form = GrowingForm(builder, Normaliser(SharedTerms()), FORMATS)
    found = form.edges(built(builder)["wrong"])
    assert len({*found.ravel().tolist()}) == 6


def test_what_is_asked_for_again_is_the_same_nodes_and_is_formed_once():
    builder, normaliser = SharingBuilder(), Normaliser(SharedTerms())
    form = GrowingForm(builder, normaliser, FORMATS)
    first = built(builder)
    form.edges(first["fused"])
    count, fired = len(builder), dict(normaliser.fired)
    again = built(builder)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    form.edges(again["fused"])
    assert (len(builder), dict(normaliser.fired)) == (count, fired)


def test_nodes_that_are_changed_by_whoever_has_them_stay_what_they_are():
    builder = SharingBuilder()
    nodes = builder.append("input:x", value=np.arange(3))
    nodes[0] = 2
    assert builder.append("input:x", value=np.arange(3)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("value", "other"), [(0, 1), (np.arange(2), np.arange(2)[:, None])])
def test_what_differs_in_values_or_shape_is_another(value, other):
    builder = SharingBuilder()
    first, second = (builder.append("input:x", value=one) for one in (value, other))
    assert not {*first.ravel().tolist()} & {*second.ravel().tolist()}


def test_it_is_told_where_sums_that_were_formed_before_decide():
    """x * c + (x - x * c) is x, unless x * c was fused into that difference somewhere."""
    builder = Builder()
    form = GrowingForm(builder, Normaliser(SharedTerms(), "EZF"), FORMATS)
    x = builder.append("input:x", value=np.arange(1))
    part = builder.append("mul.rn.f32", x, builder.append("literal:f32", value=np.array([0x3F000000])))
    rest = builder.append("sub.rn.f32", x, part)
    form.edges(rest)
    assert not form.depends_on_order
    assert form.edges(builder.append("add.rn.f32", part, rest)).tolist() == form.edges(x).tolist()
    assert form.depends_on_order
