"""Cells beside memory: they live as long as the storage that they describe, and no longer."""

from __future__ import annotations

import gc

import numpy as np
import torch

from verifier.machine.shadow.shadow_memory import Stores


def written(stores, tensor):
    """Fill every slot of a tensor's memory with a shadow and a tag."""
    store = stores.of(tensor)
    store.shadows.fill(7.0)
    store.tags.fill(1)
    store.used = True
    return store


def test_views_share_the_store_of_their_storage():
    stores = Stores(np.float64)
    tensor = torch.zeros(8)
    store = written(stores, tensor)
    assert stores.of(tensor[2:]) is stores.known(tensor.view(2, 4)) is store
    assert store.tags.size == 8 * 2 + 4


def test_a_storage_lives_on_in_its_views_and_in_numpy():
    stores = Stores(np.float64)
    tensor = torch.zeros(8)
    store = written(stores, tensor)
    view, array = tensor[1:], tensor.numpy()
    del tensor
    assert stores.known(view) is store
    del view
    gc.collect()
    assert not store.is_vacant()
    assert stores.known(torch.from_numpy(array)) is store


def test_memory_that_torch_does_not_own_is_known_as_long_as_the_session():
    stores = Stores(np.float64)
    array = np.zeros(8, dtype=np.float32)
    store = written(stores, torch.from_numpy(array))
    gc.collect()
    assert stores.known(torch.from_numpy(array)) is store


def test_a_new_tensor_at_the_address_of_a_freed_one_has_no_slots():
    stores, kept = Stores(np.float64), []
    for _ in range(100):
        tensor = torch.zeros(1000)
        address = tensor.data_ptr()
        written(stores, tensor)
        del tensor
        kept.append(torch.zeros(1000))
        if kept[-1].data_ptr() == address:
            break
    assert kept[-1].data_ptr() == address, "the allocator never gave the same memory again"
    assert stores.known(kept[-1]) is None
    store = stores.of(kept[-1])
    assert not store.used
    assert not store.tags.any()


def test_the_arrays_of_a_freed_tensor_serve_the_next_of_its_size():
    stores = Stores(np.float64)
    first, other = torch.zeros(64), torch.zeros(16)
    old, small = written(stores, first), written(stores, other)
    kept = torch.zeros(64)
    alive = written(stores, kept)
    del first, other
    following = torch.zeros(64)
    store = stores.of(following)
    assert store is old
    assert not store.tags.any()
    assert alive.tags.all()
    assert set(stores.by_address) == {kept.data_ptr(), following.data_ptr()}
    assert small.is_vacant()


def test_empty_tensors_have_nothing_in_common():
    stores = Stores(np.float64)
    written(stores, torch.zeros(0))
    assert stores.known(torch.zeros(0)) is None


def test_memory_of_another_size_at_the_same_address_is_other_memory():
    stores = Stores(np.float64)
    array = np.zeros(8, dtype=np.float32)
    written(stores, torch.from_numpy(array))
    assert stores.known(torch.from_numpy(array[:4])) is None
