"""Reads past torch's operations are noted by name: each name is torch's, and none has to be."""

import pytest
import torch

from verifier.machine.shadow import host_reads
from verifier.machine.shadow.host_reads import reads_noted


def entered():
    with reads_noted(set(), lambda _: False):
        return torch.UntypedStorage.__reduce__, torch.Tensor.tolist


NEWER_THAN_2_11 = ("_swap_data_ptr_",)


@pytest.mark.parametrize("name", host_reads._OF_STORAGES)
def test_torch_has_each_method_of_storages_that_is_watched(name):
    if name in NEWER_THAN_2_11 and torch.__version__.startswith("2.11."):
        pytest.skip("torch 2.11 has no such method")
    assert callable(getattr(torch.UntypedStorage, name)), "renamed? what it does must be watched"


@pytest.mark.parametrize("name", [*host_reads._SHARING, *host_reads._TELLING])
def test_torch_has_each_method_of_tensors_that_is_watched(name):
    assert callable(getattr(torch.Tensor, name))


@pytest.mark.parametrize("name", [*host_reads._OF_MEMORY, *host_reads._PERHAPS_OF_MEMORY])
def test_torch_has_each_function_that_makes_a_tensor_of_memory(name):
    assert callable(getattr(torch, name))


def test_a_copy_of_numbers_shares_no_memory():
    assert not host_reads._given_memory([1.0, 2.0])
    assert not host_reads._given_memory(data=torch.zeros(2))
    assert host_reads._given_memory(bytearray(8))


def test_a_version_of_torch_without_one_of_the_methods_is_watched_all_the_same(monkeypatch):
    before = torch.UntypedStorage.__reduce__, torch.Tensor.tolist
    monkeypatch.setattr(host_reads, "_OF_STORAGES", ("_of_another_version", *host_reads._OF_STORAGES))
    inside = entered()
    assert not any(one is other for one, other in zip(inside, before, strict=True))
    assert (torch.UntypedStorage.__reduce__, torch.Tensor.tolist) == before
    assert not hasattr(torch.UntypedStorage, "_of_another_version")
