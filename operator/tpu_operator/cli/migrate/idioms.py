"""What torch_xla has, and what takes its place with TorchTPU. docs/migrate-from-torch-xla.md is made of it.

The left side was looked up in torch_xla 2.9.0, with names that older versions have; the right side in what
torch_tpu 0.2.0 exports as `torch.tpu`, and in torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACKAGE: Final = "torch_xla"
ANYTHING: Final = "*"
"""Last part of a name that stands for all that is below it."""
MODULES: Final = {
    "xm": "torch_xla.core.xla_model",
    "xr": "torch_xla.runtime",
    "xmp": "torch_xla.distributed.xla_multiprocessing",
    "pl": "torch_xla.distributed.parallel_loader",
    "xs": "torch_xla.distributed.spmd",
    "xp": "torch_xla.debug.profiler",
    "met": "torch_xla.debug.metrics",
}
"""Modules by the names that everybody imports them as, which the table uses."""
SAME: Final = {
    "torch_xla.distributed.spmd.xla_sharding": "torch_xla.distributed.spmd",
    "torch_xla.distributed.spmd.api": "torch_xla.distributed.spmd",
    "torch_xla.distributed.spmd.xla_sharded_tensor": "torch_xla.distributed.spmd",
    "torch_xla.experimental.xla_sharding": "torch_xla.distributed.spmd",
    "torch_xla.experimental.pjrt": "torch_xla.runtime",
    "torch_xla.torch_xla": "torch_xla",
}
"""Modules that have the same under another name, or had it."""


class Kind(StrEnum):
    """What an idiom is in a program."""

    NAME = "name"
    """Of torch_xla."""
    ARGUMENT = "argument"
    """Text that is handed to torch, such as the type of a device."""
    BACKEND = "backend"
    """Text that is handed to torch.distributed."""
    VARIABLE = "variable"
    """Of the environment."""
    QUESTION = "question"
    """A function of another library that asks for torch_xla."""


@dataclass(frozen=True, slots=True)
class Idiom:
    """An idiom.

    Attributes:
        found: what is looked for, separated by spaces: names with the prefixes of MODULES, or texts.
        instead: what takes its place, as code; empty where nothing does.
        note: what else there is to know; where nothing takes its place, what to do without.
        gone: it goes without anything in its place, since there is no need of it any more.
        kind: what it is.
    """

    found: str
    instead: str = ""
    note: str = ""
    gone: bool = False
    kind: Kind = Kind.NAME

    @property
    def names(self) -> tuple[str, ...]:
        """What is looked for."""
        return tuple(self.found.split())

    @property
    def advice(self) -> str:
        """What to do, in one line."""
        code = self.instead or ("remove it" if self.gone else "nothing takes its place")
        return f"{code}: {self.note}" if self.note else code


@dataclass(frozen=True, slots=True)
class Chapter:
    """Idioms about one thing."""

    title: str
    idioms: tuple[Idiom, ...]


CHAPTERS: Final = (
    Chapter(
        "Import and devices",
        (
            Idiom(
                "torch_xla",
                gone=True,
                note="`import torch` loads TorchTPU by itself where it is installed",
            ),
            Idiom(
                "xm.xla_device torch_xla.device xm.get_xla_supported_devices torch_xla.devices",
                'torch.device("tpu")',
                "each process has one device",
            ),
            Idiom(
                "xm.xla_real_devices torch_xla.real_devices xm.xla_device_hw xm.xla_device_kind",
                "torch.tpu.get_device_name()",
            ),
            Idiom(
                "xr.device_type",
                "torch.accelerator.current_accelerator().type",
                'it is "tpu", in lower case',
            ),
            Idiom("xr.set_device_type xr.using_pjrt", gone=True, note="the device of a TPU pod is the TPU"),
            Idiom("xm.is_xla_tensor", 'tensor.device.type == "tpu"'),
            Idiom("xm.send_cpu_data_to_device", 'tensor.to("tpu")'),
            Idiom(
                "xr.runtime_device_attributes xr.global_runtime_device_attributes",
                "torch.tpu.get_device_properties()",
                "of the process's own device",
            ),
            Idiom("xr.is_bf16_supported", "torch.bfloat16 in torch.tpu.get_amp_supported_dtype()"),
            Idiom(
                "xm.get_memory_info",
                note="the memory of the chips is in the launcher's metrics (docs/runtime.md)",
            ),
            Idiom(
                "xla xla:0 xla:1",
                '"tpu"',
                'as in .to("tpu"), device="tpu", torch.autocast("tpu")',
                kind=Kind.ARGUMENT,
            ),
            Idiom(
                "is_torch_xla_available is_torch_tpu_available",
                "torch.tpu.is_available()",
                "it asks for torch_xla, which TorchTPU is not: with it, the code for XLA does not run",
                kind=Kind.QUESTION,
            ),
        ),
    ),
    Chapter(
        "Steps and compilation",
        (
            Idiom(
                "xm.mark_step torch_xla.sync torch_xla.step",
                gone=True,
                note="operations run as they are called, and torch.compile makes one program of a step; "
                "where it was there to wait, as for a clock: torch.tpu.synchronize()",
            ),
            Idiom("xm.wait_device_ops", "torch.tpu.synchronize()"),
            Idiom(
                "torch_xla.compile",
                "torch.compile",
                "full_graph is fullgraph; shapes are static unless dynamic=True",
            ),
            Idiom(
                "openxla openxla_eval",
                "torch.compile(model)",
                "without a backend: TorchTPU's is taken for tensors on a TPU",
                kind=Kind.ARGUMENT,
            ),
            Idiom("xm.add_step_closure", "closure(*args)", "call it there and then"),
            Idiom(
                "xr.initialize_cache xr.get_num_cached_compilation_graph",
                "spec.run.compileCache",
                "a field of the job; nothing in the program (docs/api.md)",
            ),
            Idiom(
                "torch_xla.experimental.eager_mode torch_xla.experimental.compile "
                "torch_xla.experimental.eager.*",
                gone=True,
                note="eager is what TorchTPU is",
            ),
            Idiom("xm.optimization_barrier_", "torch.tpu.ops.optimization_barrier"),
            Idiom(
                "torch_xla.experimental.scan.* torch_xla.experimental.scan_layers.* "
                "torch_xla.experimental.fori_loop.* torch_xla.experimental.gradient_accumulation.*",
                note="a Python loop is right, and compiles to as many copies of its body; torch.compile of "
                "the body alone compiles it once",
            ),
            Idiom("xm.unlazy xm.check_view_sharing", gone=True, note="tensors are not lazy"),
            Idiom(
                "xm.get_stablehlo xm.get_stablehlo_bytecode torch_xla.stablehlo.* "
                "torch_xla.tf_saved_model_integration.*",
                note="torch_tpu 0.2.0 exports no way to StableHLO; torch.export gives a graph of operators",
            ),
        ),
    ),
    Chapter(
        "Processes",
        (
            Idiom(
                "xmp.spawn torch_xla.launch",
                "main()",
                "call the function itself: `launcher: torchrun`, the default, starts one for each device",
            ),
            Idiom("xmp.MpModelWrapper", "the model itself", "each process makes its own"),
            Idiom("xmp.MpSerialExecutor", "if int(os.environ['LOCAL_RANK']) == 0: …; dist.barrier()"),
            Idiom(
                "xr.global_ordinal xm.get_ordinal xr.process_index",
                "dist.get_rank()",
                "after dist.init_process_group",
            ),
            Idiom(
                "xr.world_size xr.global_device_count xr.global_runtime_device_count xr.process_count "
                "xm.xrt_world_size",
                "dist.get_world_size()",
            ),
            Idiom("xr.local_ordinal xm.get_local_ordinal", "int(os.environ['LOCAL_RANK'])"),
            Idiom(
                "xr.local_process_count xr.local_device_count",
                "int(os.environ['LOCAL_WORLD_SIZE'])",
            ),
            Idiom(
                "xr.addressable_device_count xr.addressable_runtime_device_count torch_xla.device_count",
                "torch.tpu.device_count()",
                "one in each process",
            ),
            Idiom("xr.host_index", "int(os.environ['NODE_RANK'])", "over all slices"),
            Idiom("xr.get_master_ip", "os.environ['MASTER_ADDR']"),
            Idiom(
                "xm.is_master_ordinal",
                "dist.get_rank() == 0",
                "without arguments it asked for the first process of each host: "
                "int(os.environ['LOCAL_RANK']) == 0",
            ),
            Idiom(
                "xm.master_print",
                "if dist.get_rank() == 0: print(…)",
                "with local=True once for each host: int(os.environ['LOCAL_RANK'])",
            ),
            Idiom(
                "xmp.create_optimized_replica_groups", gone=True, note="a group of all processes has no need"
            ),
            Idiom("xm.do_on_ordinals", "if dist.get_rank() in ordinals: …"),
            Idiom("xm.rendezvous xm.xla_rendezvous", "dist.barrier()", "a payload: dist.all_gather_object"),
        ),
    ),
    Chapter(
        "Gradients and collectives",
        (
            Idiom(
                "xm.optimizer_step",
                "optimizer.step()",
                "DistributedDataParallel or fully_shard averages the gradients in loss.backward()",
            ),
            Idiom(
                "xm.reduce_gradients xm.all_reduce_bucketized_gradients",
                "torch.nn.parallel.DistributedDataParallel(model)",
                "without device_ids",
            ),
            Idiom(
                "xm.broadcast_master_param", gone=True, note="DistributedDataParallel does it as it is made"
            ),
            Idiom(
                "torch_xla.distributed.xla_backend.* torch_xla.experimental.pjrt_backend.*",
                'dist.init_process_group("tpu_dist")',
                "nothing has to be imported for it",
            ),
            Idiom("xla", '"tpu_dist"', kind=Kind.BACKEND),
            Idiom(
                "xla:// pjrt://",
                gone=True,
                note="torchrun says where processes meet: no init_method",
                kind=Kind.BACKEND,
            ),
            Idiom(
                "xm.all_reduce",
                "dist.all_reduce(tensor)",
                "in place, and without scale: divide by dist.get_world_size()",
            ),
            Idiom(
                "xm.REDUCE_SUM xm.REDUCE_MUL xm.REDUCE_AND xm.REDUCE_OR xm.REDUCE_MIN xm.REDUCE_MAX",
                "dist.ReduceOp.SUM",
                "or PRODUCT, BAND, BOR, MIN, MAX",
            ),
            Idiom("xm.all_gather xm.all_gather_bucketized", "dist.all_gather_into_tensor(out, tensor)"),
            Idiom(
                "xm.reduce_scatter xm.reduce_scatter_bucketized", "dist.reduce_scatter_tensor(out, tensor)"
            ),
            Idiom("xm.all_to_all", "dist.all_to_all_single(out, tensor)"),
            Idiom("xm.collective_broadcast", "dist.broadcast(tensor, src)"),
            Idiom("xm.send xm.recv", "dist.send, dist.recv"),
            Idiom(
                "xm.collective_permute",
                note="torch.distributed has no permutation; dist.batch_isend_irecv says it pair by pair",
            ),
            Idiom(
                "xm.mesh_reduce",
                "dist.all_gather_object(values, value)",
                "and reduce the list in Python",
            ),
            Idiom("torch_xla.core.functions.*", "torch.distributed.nn.functional"),
            Idiom(
                "torch_xla.distributed.data_parallel.*", "torch.nn.parallel.DistributedDataParallel(model)"
            ),
        ),
    ),
    Chapter(
        "Sharding",
        (
            Idiom(
                "torch_xla.distributed.fsdp.* torch_xla.experimental.spmd_fully_sharded_data_parallel.*",
                "torch.distributed.fsdp.fully_shard(model)",
                "FSDP2; each block first, then the whole",
            ),
            Idiom(
                "torch_xla.distributed.zero_redundancy_optimizer.*",
                "torch.distributed.fsdp.fully_shard(model)",
                "the optimizer of a sharded model is sharded",
            ),
            Idiom(
                "xr.use_spmd xr.is_spmd",
                gone=True,
                note="there is one process for each device, not one for a host; sharding is DTensor's",
            ),
            Idiom(
                "xs.Mesh xs.HybridMesh xs.get_1d_mesh xs.set_global_mesh xs.get_global_mesh",
                "torch.tpu.distributed.topology_aware_mesh(mesh_shape)",
                "for several slices with dcn_mesh_shape; or "
                'torch.distributed.device_mesh.init_device_mesh("tpu", shape)',
            ),
            Idiom(
                "xs.mark_sharding xs.mark_sharding_with_gradients xs.annotate_custom_sharding "
                "xs.xla_distribute_tensor xs.ShardingSpec",
                "torch.distributed.tensor.distribute_tensor(tensor, mesh, [Shard(0)])",
                "a partition spec has an axis for each dimension of the tensor, placements have a dimension "
                "of the tensor for each axis of the mesh",
            ),
            Idiom(
                "xs.xla_distribute_module xs.auto_policy",
                "torch.distributed.tensor.distribute_module(module, mesh)",
                "or parallelize_module with ColwiseParallel, RowwiseParallel; nothing is sharded by itself",
            ),
            Idiom("xs.clear_sharding", "tensor.full_tensor()"),
            Idiom("xs.XLAShardedTensor xs.XLAShard", "torch.distributed.tensor.DTensor"),
            Idiom(
                "xs.wrap_as_sharded_tensor xs.unwrap_sharded_tensor xs.wrap_if_sharded",
                "DTensor.from_local(tensor, mesh, placements), tensor.to_local()",
            ),
            Idiom(
                "xs.enable_manual_sharding xs.disable_manual_sharding",
                "torch.distributed.tensor.experimental.local_map",
            ),
            Idiom(
                "xs.apply_xla_patch_to_nn_linear xs.xla_patched_nn_linear_forward "
                "xs.apply_backward_optimization_barrier",
                gone=True,
                note="they were for XLA's sharding pass, which does not take part",
            ),
        ),
    ),
    Chapter(
        "Data and checkpoints",
        (
            Idiom(
                "pl.MpDeviceLoader pl.ParallelLoader pl.PerDeviceLoader",
                'for batch in loader: batch = batch.to("tpu")',
                "a DataLoader with a DistributedSampler",
            ),
            Idiom(
                "xm.save",
                "if dist.get_rank() == 0: torch.save(model.state_dict(), path)",
                "it saved once for each host; a sharded model: torch.distributed.checkpoint",
            ),
            Idiom("torch_xla.utils.serialization.*", "torch.save, torch.load"),
            Idiom(
                "torch_xla.experimental.distributed_checkpoint.*",
                "torch.distributed.checkpoint",
                "DTensors need no planner of their own",
            ),
            Idiom("torch_xla.utils.checkpoint.*", "torch.utils.checkpoint.checkpoint"),
            Idiom("torch_xla.utils.utils.*", note="torch_xla's helpers: what is used of them is a few lines"),
        ),
    ),
    Chapter(
        "Numbers",
        (
            Idiom("torch_xla.manual_seed xm.set_rng_state", "torch.manual_seed(seed)"),
            Idiom("xm.get_rng_state", "torch.tpu.get_rng_state()"),
            Idiom("xm.fork_rng", 'torch.random.fork_rng(device_type="tpu")'),
            Idiom("torch_xla.amp.autocast", 'torch.autocast("tpu", dtype=torch.bfloat16)'),
            Idiom("torch_xla.amp.GradScaler", gone=True, note="bfloat16 needs no scaling of the loss"),
            Idiom(
                "torch_xla.amp.syncfree.*",
                "torch.optim",
                "or torch.tpu.optimizers, which has Sgd, AdamW and Muon",
            ),
            Idiom(
                "torch_xla.backends.set_mat_mul_precision torch_xla.backends.get_mat_mul_precision "
                "torch_xla._XLAC._xla_set_mat_mul_precision",
                "with torch.tpu.precision(torch.tpu.Precision.HIGHEST): …",
            ),
        ),
    ),
    Chapter(
        "Kernels, profiles and figures",
        (
            Idiom(
                "torch_xla.experimental.custom_kernel.* torch_xla.experimental.splash_attention.* "
                "torch_xla.experimental.pallas_kernels.*",
                "torch.tpu.pallas.jax_op",
                "a Pallas kernel as an operator; attention: torch.tpu.ops.splash_sdpa, or "
                "torch.nn.functional.scaled_dot_product_attention",
            ),
            Idiom(
                "torch_xla.core.xla_builder.* torch_xla.core.xla_op_registry.*",
                "torch.tpu.pallas.jax_op",
                "HLO cannot be built by hand; JAX code can be an operator",
            ),
            Idiom(
                "xp.trace xp.trace_detached xp.start_trace xp.stop_trace",
                "with torch.profiler.profile(): …",
            ),
            Idiom("xp.Trace xp.StepTrace xp.trace_me", 'with torch.profiler.record_function("name"): …'),
            Idiom(
                "xp.start_server",
                note="torch_tpu 0.2.0 exports no server for profiles; torch.profiler writes them",
            ),
            Idiom(
                "met.* torch_xla.debug.metrics_saver.* torch_xla.debug.metrics_compare_utils.*",
                note="there are no counters of lazy tensors; torch.profiler shows what was compiled and ran",
            ),
            Idiom("xm.RateTracker", "time.perf_counter()"),
            Idiom("torch_xla.test.*", note="helpers of torch_xla's own tests and examples"),
            Idiom(
                "torch_xla._XLAC.* torch_xla._internal.* torch_xla.experimental.plugins.*",
                note="torch_xla's inside, which has no counterpart",
            ),
        ),
    ),
    Chapter(
        "Variables",
        (
            Idiom(
                "PJRT_DEVICE",
                gone=True,
                note="TorchTPU does not read it; jobs of torch_xla keep it, in spec.run.env",
                kind=Kind.VARIABLE,
            ),
            Idiom("XLA_USE_SPMD XLA_AUTO_SPMD", gone=True, note="sharding is DTensor's", kind=Kind.VARIABLE),
            Idiom(
                "XLA_USE_BF16 XLA_DOWNCAST_BF16 XLA_USE_FP16 XLA_DOWNCAST_FP16",
                "model.to(torch.bfloat16)",
                'or torch.autocast("tpu", dtype=torch.bfloat16); no type is changed behind your back',
                kind=Kind.VARIABLE,
            ),
            Idiom(
                "XLA_PERSISTENT_CACHE_PATH",
                "spec.run.compileCache",
                "a field of the job",
                kind=Kind.VARIABLE,
            ),
            Idiom(
                "XLA_USE_EAGER_DEBUG_MODE XLA_IR_DEBUG XLA_HLO_DEBUG XLA_SAVE_TENSORS_FILE PT_XLA_DEBUG "
                "PT_XLA_DEBUG_LEVEL XLA_NO_SPECIAL_SCALARS",
                gone=True,
                note="it is about lazy tensors",
                kind=Kind.VARIABLE,
            ),
            Idiom(
                "torch_xla.core.xla_env_vars.*",
                'os.environ["…"]',
                "names of variables, of which those of torchrun stay: RANK, LOCAL_RANK, WORLD_SIZE",
            ),
            Idiom(
                "XRT_TPU_CONFIG XRT_WORKERS XRT_DEVICE_MAP XRT_MESH_SERVICE_ADDRESS",
                gone=True,
                note="it is of XRT, which PJRT has long replaced",
                kind=Kind.VARIABLE,
            ),
            Idiom(
                "TPU_NUM_DEVICES",
                "spec.run.processesPerHost",
                "a field of the job; TorchTPU wants one process for each device",
                kind=Kind.VARIABLE,
            ),
        ),
    ),
)
UNKNOWN: Final = Idiom(
    f"{PACKAGE}.{ANYTHING}",
    note="torch_xla has it, and the table does not: look for it in the docs of TorchTPU",
)


def whole(name: str) -> str:
    """A name of the table with its module written out."""
    head, dot, rest = name.partition(".")
    return f"{MODULES.get(head, head)}{dot}{rest}"


def usual(name: str) -> str:
    """A name of torch_xla as the table has it, without aliases."""
    for other, module in SAME.items():
        if name == other or name.startswith(f"{other}."):
            return f"{module}{name.removeprefix(other)}"
    return name


def all_of(kind: Kind) -> Iterator[tuple[str, Idiom]]:
    """All names of a kind, each with its idiom."""
    for chapter in CHAPTERS:
        for idiom in chapter.idioms:
            if idiom.kind is kind:
                yield from ((name, idiom) for name in idiom.names)


@cache
def named(kind: Kind) -> Mapping[str, Idiom]:
    """Idioms of a kind by what is looked for, with modules written out."""
    return {whole(name): idiom for name, idiom in all_of(kind)}


def lookup(name: str) -> Idiom | None:
    """The idiom of a name of torch_xla, of the narrowest row that has it; None if it is a module alone."""
    name, known = usual(name), named(Kind.NAME)
    if name == PACKAGE or any(one.startswith(f"{name}.") for one in known):
        return None
    parts = name.split(".")
    wholes = (".".join(parts[:size]) for size in range(len(parts), 1, -1))
    # What a class has belongs to the class, as in `xs.Mesh.from_str`.
    rows = (known.get(whole) or known.get(f"{whole}.{ANYTHING}") for whole in wholes)
    return next((row for row in rows if row), UNKNOWN)


def imported(module: str) -> Idiom:
    """The idiom of the import of a module of torch_xla: of all that it has, or of imports."""
    known = named(Kind.NAME)
    return known.get(f"{usual(module)}.{ANYTHING}", known[PACKAGE])
