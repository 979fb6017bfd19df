"""Whatever a wrapper asks, tensors of the machine are CUDA tensors: of Python, in backward, in custom ops."""

import copy
import inspect
import re

import pytest
import torch

from verifier import machine
from verifier.execution.poisoned_memory import fresh_memory
from verifier.machine.device.tensor_places import memory_of
from verifier.machine.execute.findings import UnsupportedFeature

CUDA = torch.device("cuda", 0)
HOST = torch.device("cpu")


@pytest.fixture
def played():
    with machine.session(strict=True, multiprocessors=7) as opened:
        yield opened


@pytest.fixture
def x(played):
    del played
    return torch.arange(12.0, device="cuda").reshape(3, 4)


# -- what a tensor says -----------------------------------------------------------------------------


def test_a_tensor_says_cuda_in_every_way(x):
    assert isinstance(x.device, torch.device)
    assert (x.device, str(x.device), x.device.type, x.device.index) == (CUDA, "cuda:0", "cuda", 0)
    assert (x.is_cuda, x.is_cpu, x.get_device(), torch.get_device(x)) == (True, False, 0, 0)
    assert x.type() == "torch.cuda.FloatTensor"
    assert "device='cuda:0'" in repr(x)
    assert (x.untyped_storage().device, x.untyped_storage().is_cuda) == (CUDA, True)
    assert x.__dlpack_device__()[1] == 0
    assert x.__cuda_array_interface__["shape"] == (3, 4)


def test_what_comes_from_outside_the_session_is_on_the_device_too():
    outside = torch.ones(3)
    with machine.session():
        assert outside.is_cuda
        assert memory_of(outside) == HOST
    assert not outside.is_cuda


@pytest.mark.parametrize(
    "derive",
    [
        lambda x: x[0],
        lambda x: x.t(),
        lambda x: x * 2,
        lambda x: x.half().float(),
        lambda x: x.to(torch.float64),
        lambda x: x.to(x.device),
        lambda x: x.cuda(),
        lambda x: x.cuda(0),
        lambda x: x.type(torch.float16),
        torch.nn.Parameter,
        copy.deepcopy,
        lambda x: torch.cat([x, x]),
        lambda x: x.split(1)[2],
        lambda x: x.sum(),
        lambda x: x.new_empty(3),
        torch.empty_like,
        lambda x: torch.zeros(3, device=x.device),
        lambda x: torch.zeros(3, device=torch.device("cuda", x.get_device())),
        lambda x: torch.tensor([1.0], device="cuda"),
        lambda x: torch.zeros(3, device=0),
        lambda x: torch.ops.aten.zeros.default([3], device=x.device),
        lambda x: x.cpu().to(x),
        lambda x: x.cpu().type_as(x),
        lambda x: x.cpu().to("cuda", torch.float16, non_blocking=True),
        lambda x: torch.as_tensor(x.cpu(), device="cuda"),
        lambda x: torch.nn.Linear(4, 2).to(x.device).weight,
        lambda x: torch.nn.Linear(4, 2).cuda()(x).detach(),
        torch.utils.dlpack.from_dlpack,
        torch.func.vmap(lambda row: row * 2),
        lambda x: x[torch.arange(2)],
        lambda x: x + torch.tensor(1.0),
    ],
)
def test_what_is_made_of_it_is_on_the_device(x, derive):
    assert derive(x).device == CUDA


@pytest.mark.parametrize(
    "derive",
    [
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: x.to("cpu", torch.float16),
        lambda x: x.type("torch.FloatTensor"),
        lambda x: x.cpu() * 2,
        lambda x: x.cpu()[0],
        lambda x: x.cpu().new_zeros(3),
        lambda x: torch.zeros_like(x, device="cpu"),
        lambda x: torch.empty(3),
        lambda x: torch.tensor([1.0]),
        lambda x: torch.from_numpy(x.cpu().numpy()),
        lambda x: copy.deepcopy(x.cpu()),
        lambda x: torch.nn.Linear(4, 2).weight,
        lambda x: x.cpu().pin_memory(),
    ],
)
def test_what_is_made_on_the_host_is_on_the_host(x, derive):
    made = derive(x)
    assert made.device == HOST
    assert (made.is_cuda, made.get_device()) == (False, -1)


def test_moving_copies_and_staying_does_not(x):
    assert x.to("cuda") is x
    assert x.cuda().data_ptr() == x.data_ptr()
    host = x.cpu()
    host.add_(1)
    assert x[0, 0] == 0
    assert host.cuda().data_ptr() != host.data_ptr()


def test_a_default_device_is_heard(played):
    del played
    with torch.device("cuda"):
        assert torch.empty(2).is_cuda
    assert not torch.empty(2).is_cuda


def test_memory_that_was_made_fresh_lies_where_it_was_asked_for(x):
    with fresh_memory("nan"):
        assert torch.empty(3, device=x.device).is_cuda
        assert not torch.empty(3).is_cuda


def test_afterwards_torch_is_as_it_was():
    names = [(torch.Tensor, "device"), (torch.Tensor, "to"), (torch, "empty"), (torch.cuda, "Stream")]
    before = [getattr(owner, name) for owner, name in names]
    with machine.session(), machine.session():
        assert torch.cuda.is_available()
        assert [getattr(owner, name) for owner, name in names] != before
    assert [getattr(owner, name) for owner, name in names] == before
    assert "device" not in vars(torch.Tensor)


# -- autograd and custom ops ------------------------------------------------------------------------


class _Twice(torch.autograd.Function):
    seen = ()

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, *grads):
        (x,) = ctx.saved_tensors
        _Twice.seen = (x.device, *(g.device for g in grads), torch.empty_like(x).device)
        return 2 * grads[0] + 3 * grads[1]


def test_backward_sees_the_device_with_gradients_that_autograd_makes(x):
    x.requires_grad_()
    first, _ = _Twice.apply(x)
    (grad,) = torch.autograd.grad(first.sum(), x)
    assert _Twice.seen == (CUDA,) * 4
    assert grad.device == CUDA


def test_gradients_come_back_through_the_host(x):
    x.requires_grad_()
    (grad,) = torch.autograd.grad((x.cpu() * 2).sum(), x)
    assert grad.device == CUDA
    assert (grad == 2).all()


def test_a_custom_op_for_cuda_alone_is_found_and_sees_the_device(x):
    seen = []

    @torch.library.custom_op("norm_verifier_tests::doubled", mutates_args=(), device_types="cuda")
    def doubled(value: torch.Tensor) -> torch.Tensor:
        seen.extend([value.device, torch.empty_like(value).device])
        return value * 2

    assert torch.equal(doubled(x), x * 2)
    assert seen == [CUDA, CUDA]


# -- what a device refuses --------------------------------------------------------------------------


@pytest.mark.parametrize("mix", [lambda x: x + torch.ones(4), lambda x: torch.stack([x, torch.ones(3, 4)])])
def test_tensors_of_two_places_do_not_mix(x, mix):
    with pytest.raises(RuntimeError, match="same device, but found at least two devices, cuda:0 and cpu"):
        mix(x)


def test_a_device_that_is_not_there_is_refused(x):
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        x.to("cuda:1")


@pytest.mark.parametrize(
    "ask",
    [
        lambda cuda: cuda.CUDAGraph(),
        lambda cuda: cuda.graph(None),
        lambda cuda: cuda.memory_snapshot(),
        lambda cuda: cuda.utilization(),
        lambda cuda: cuda.graphs.CUDAGraph(),
        lambda cuda: cuda.memory.memory_summary(),
        lambda cuda: cuda.default_generators[cuda.current_device()],
        lambda cuda: torch._C._accelerator_getStream(cuda.current_device()),
    ],
)
def test_what_is_not_played_says_so(played, ask):
    with pytest.raises(UnsupportedFeature, match=r"the machine lacks torch\."):
        ask(torch.cuda)
    assert len(played.failed) == 1, "so that no pass rests on what a wrapper does after it caught it"


def test_generators_of_the_host_are_torchs_own(played):
    del played
    for generator in (torch.Generator(), torch.Generator("cpu"), torch.default_generator):
        assert isinstance(generator, torch.Generator)
        assert generator.device == HOST
    assert torch.rand(3, generator=torch.Generator().manual_seed(1)).device == HOST
    assert not isinstance(3, torch.Generator)


def test_generators_of_the_device_draw_its_numbers(played):
    """Which numbers a device draws is nobody's business; that a seed gives the same ones is."""
    for device in (0, "cuda", torch.device("cuda", 0)):
        generator = torch.Generator(device)
        assert isinstance(generator, torch.Generator)
        assert generator.device == torch.device("cuda", 0)
    drawn = [torch.randn(5, device="cuda", generator=generator.manual_seed(3)) for _ in range(2)]
    assert drawn[0].is_cuda
    assert torch.equal(*drawn)
    assert not torch.equal(drawn[0], torch.randn(5, device="cuda", generator=generator))
    assert torch.randint(0, 9, (3,), device="cuda", generator=generator).is_cuda
    assert not played.failed
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.Generator("cuda:1")


@pytest.mark.parametrize(("of", "at"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_generator_draws_for_no_other_device(played, of, at):
    del played
    told = f"Expected a '{at}' device type for generator but found '{of}'"
    with pytest.raises(RuntimeError, match=told):
        torch.rand(3, device=at, generator=torch.Generator(of))
    with pytest.raises(RuntimeError, match=told):
        torch.rand_like(torch.ones(3, device=at), generator=torch.Generator(of))


def test_wrappers_get_the_stream_that_they_ask_torch_in_c_for(played):
    """They launch on it themselves; torch's build for the CPU alone has no such function."""
    del played
    assert torch._C._cuda_getCurrentRawStream(0) == torch.cuda.current_stream().cuda_stream


@pytest.mark.parametrize(
    "pin",
    [
        lambda x: x.cpu().pin_memory(),
        lambda x: torch.ops.aten._pin_memory(x.cpu()),
        lambda x: torch.empty(x.shape, pin_memory=True),
        lambda x: torch.ops.aten.empty.memory_format(x.shape, pin_memory=True),
    ],
)
def test_pinned_memory_is_memory_of_the_host_and_asks_no_driver(x, pin):
    made = pin(x)
    assert made.device == HOST
    assert made.is_pinned()
    assert torch.ops.aten.is_pinned(made)
    assert not x.is_pinned()


def test_no_function_of_torch_in_c_reaches_a_device(played):
    """Builds for CUDA have those of the first kind, all builds those of the second."""
    del played
    kinds = ("_cuda_", "_accelerator_")
    real = {n for n in dir(torch._C) if n.startswith(kinds) and inspect.isbuiltin(getattr(torch._C, n))}
    harmless = re.compile("Fork|Compiled|ArchFlags|Version|isHistory|benchmark|isAllocator|AllocatorSettings")
    assert not [name for name in real if not harmless.search(name)]


def test_a_class_that_is_not_played_is_one_still(played):
    del played
    assert torch.cuda.CUDAGraph | None  # as annotations write it
    assert not isinstance(torch.ones(1), torch.cuda.CUDAGraph)


# -- torch.cuda --------------------------------------------------------------------------------------


def test_the_multiprocessors_are_told_in_every_way(played):
    from verifier.execution.backends.machine import BACKEND

    driver = pytest.importorskip("triton.runtime").driver.active

    def told():
        number = torch.cuda.current_device()
        return {
            torch.cuda.get_device_properties(number).multi_processor_count,
            torch.cuda.get_device_properties("cuda").multi_processor_count,
            driver.utils.get_device_properties(number)["multiprocessor_count"],
            driver.utils.get_device_properties(driver.get_current_device())["multiprocessor_count"],
            played.machine.multiprocessors,
        }

    assert told() == {7}
    with BACKEND.varied(multiprocessors=3):
        assert told() == {3}


def test_a_property_that_the_machine_does_not_have_is_refused_and_is_no_fault_of_who_asks(played):
    told = torch.cuda.get_device_properties(0)
    assert told.gcnArchName == told.name
    with pytest.raises(UnsupportedFeature, match=r"get_device_properties\(\.\.\.\)\.clock_rate"):
        print(told.clock_rate)
    assert len(played.failed) == 1
    assert not hasattr(told, "no_such_property")


def test_triton_is_told_the_device(played):
    driver = pytest.importorskip("triton.runtime").driver.active
    number = driver.get_current_device()
    assert number == 0
    assert (number != 0) is False
    assert driver.get_active_torch_device() == CUDA
    with machine.session(architecture=80):
        assert driver.get_current_device() != number  # as a key: compiled code is of one architecture
        assert driver.get_current_device() == 0
    del played


def test_side_streams_wait_and_are_current_inside(x):
    main = torch.cuda.current_stream()
    side = torch.cuda.Stream(device=x.device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream(x.device) == side != main
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        x.record_stream(side)
    main.wait_event(event)
    event.synchronize()
    assert torch.cuda.current_stream() == main == torch.cuda.default_stream()
    assert isinstance(side, torch.cuda.Stream)
    assert event.query()
    assert not torch.cuda.is_current_stream_capturing()


def test_devices_are_made_current_and_left(played):
    played.devices = 2
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        with torch.cuda.device_of(torch.ones(1, device="cuda:0")):
            assert torch.cuda.current_device() == 0
        assert torch.empty(1, device="cuda").device == torch.device("cuda", 1)
    assert torch.cuda.current_device() == 0
    assert (torch.cuda.device_count(), torch.accelerator.device_count()) == (2, 2)


def test_the_accelerator_is_cuda(played):
    del played
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator().type == "cuda"
    assert torch.accelerator.current_device_index() == 0
    assert torch.version.cuda
