"""Quantize a checkpoint into a bundle, tensor by tensor.

Peak memory stays near the size of the largest tensor: each tensor is loaded, quantized, written and dropped. A worker pool
quantizes several at once, one per worker. This process writes the results in the order of the bundle, so that the bytes do
not depend on where they were computed. Ternary planes with calibration walk the graph instead of the list of tensors,
because the inputs of a layer come from the quantized layers before it. This takes more memory: the activations of all
calibration tokens twice, and four float64 matrices [in, in] of the widest linear.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.bundle.manifest import Tokens
from edgedec.errors import BundleError, UnsupportedError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Add, Embed, Linear
from edgedec.graph.passes import fuse_linears
from edgedec.progress import Progress, silent
from edgedec.quantize.batch_interpreter import BatchInterpreter
from edgedec.quantize.hints import is_ternary, ternary_hint
from edgedec.quantize.jobs import Job, error_squares, fit, load_finite, run_job
from edgedec.quantize.methods.planes import Statistics
from edgedec.quantize.norm_shifts import norm_shifts, scaled
from edgedec.quantize.options import QuantizeOptions, QuantizeReport
from edgedec.quantize.readers import Checkpoint
from edgedec.quantize.readers.checkpoint import Maker, Makers, model_graph
from edgedec.quantize.storage import MatrixScheme, Role, storage_of
from edgedec.quantize.tokenizer_identity import tokenizer_identity
from edgedec.reference.float_profile.ops.quantize_activation import quantize_rows
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme, Int8Weight, Scheme, TernaryScheme
from edgedec.stopwatch import Stopwatch
from edgedec.workers import WorkerPool
from edgedec.workers.local import usable_cores

__all__ = [
    "QuantizeOptions",
    "QuantizeReport",
    "checkpoint_graph",
    "least_bytes",
    "local_workers",
    "quantize",
    "tensor_loader",
    "uses_calibration",
]

log = logging.getLogger(__name__)

Array = NDArray[Any]
F32 = NDArray[np.float32]

_WORTH_PROCESSES = 50_000_000  # parameters; with fewer, starting a process takes longer than the work that it would do
_MOST_WORKERS = 4  # default limit: each worker holds a tensor and the libraries, and one process writes for all of them
_FITTED_WORK = 100  # time of fitting codes to a matrix, relative to that of rounding it to int8
# Buffers that some exporters write and no model reads.
_IGNORED = re.compile(r".*(rotary_emb\.inv_freq|\.masked_bias|\.attention\.bias)$")


def checkpoint_graph(checkpoint: Checkpoint) -> tuple[Graph, dict[str, str]]:
    """Return the float graph with its head untied, and the checkpoint tensor that each graph weight comes from.

    Raises:
        BundleError: a tensor is missing or has another shape.
        UnsupportedError: the family is unknown, or the checkpoint has tensors that the family would ignore.
    """
    graph = model_graph(checkpoint.source, checkpoint.config | {"tie_word_embeddings": False})
    tied = bool(checkpoint.config.get("tie_word_embeddings"))
    sources = {name: name for name in graph.weights}
    if tied:
        (embed,) = (op for op in graph.operations if isinstance(op, Embed))
        sources[graph.operations[-1].weight_names[0]] = embed.weight
    for name, spec in graph.weights.items():
        info = checkpoint.tensors.get(sources[name])
        if info is None:
            raise BundleError(f"{checkpoint.source}: tensor {sources[name]} is missing; the configuration requires it")
        if info.shape != spec.shape:
            raise BundleError(
                f"{checkpoint.source}: tensor {sources[name]} is {info.shape}, the configuration says {spec.shape}"
            )
    known = {*graph.weights, *sources.values()}
    for name in checkpoint.tensors:
        if name not in known and not _IGNORED.fullmatch(name):
            raise UnsupportedError(
                f"{checkpoint.source}: tensor {name} has no place in the family "
                f"{checkpoint.config.get('model_type')!r}; leaving it out would change the model"
            )
    return graph, sources


def uses_calibration(checkpoint: Checkpoint, options: QuantizeOptions) -> bool:
    """Return whether calibration text would change the result."""
    return storage_of(checkpoint, options).fitted


def local_workers(checkpoint: Checkpoint) -> int:
    """Return the number of local processes to quantize a checkpoint with.

    It is one per core, at most ``_MOST_WORKERS``, and 1 for a small checkpoint.
    """
    if sum(int(np.prod(info.shape)) for info in checkpoint.tensors.values()) < _WORTH_PROCESSES:
        return 1
    return min(usable_cores(), _MOST_WORKERS)


def least_bytes(checkpoint: Checkpoint, options: QuantizeOptions) -> int:
    """Return a lower bound on the bytes of the bundle's weights, by shapes alone, to compare with the room on the disk."""
    graph, sources = checkpoint_graph(checkpoint)
    scheme: Scheme = options.fitted_scheme or (Int8Scheme(rows=True) if options.method == "int8" else TernaryScheme())
    total = 0
    for source in set(sources.values()):
        info = checkpoint.tensors[source]
        floats = options.method == "float" or len(info.shape) != len(
            graph.weights[graph.operations[-1].weight_names[0]].shape
        )
        total += sum(
            part.nbytes for part in (FloatScheme(dtype=info.dtype) if floats else scheme).parts(info.shape).values()
        )
    return total


def _load(checkpoint: Checkpoint, name: str) -> NDArray[Any]:
    return load_finite(partial(checkpoint.load, name), f"{checkpoint.source}: tensor {name}")


def _maker(checkpoint: Checkpoint, name: str) -> Maker:
    """Return a function that loads one tensor; if the reader provides one that can be sent to other processes, that one."""
    read = checkpoint.read_tensor
    return read.by_name[name] if isinstance(read, Makers) else partial(checkpoint.load, name)


def tensor_loader(checkpoint: Checkpoint, sources: dict[str, str]) -> Callable[[str], F32]:
    """Return a function from the name of a graph weight to its float32 array, which it reads again on every call."""
    return lambda name: _load(checkpoint, sources[name]).astype(np.float32, copy=False)


class _Run:
    """State that the steps of one quantization share."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        writer: BundleWriter,
        options: QuantizeOptions,
        pool: WorkerPool | None,
        progress: Progress,
        watch: Stopwatch,
    ) -> None:
        self.checkpoint, self.writer, self.options, self.progress = checkpoint, writer, options, progress
        self.watch, self.pool, self.storage = watch, pool, storage_of(checkpoint, options)
        self.stored: dict[str, Scheme] = {}
        self.graph, self.sources = checkpoint_graph(checkpoint)
        self.head = self.graph.operations[-1].weight_names[0]
        self.embedding = next(op.weight for op in self.graph.operations if isinstance(op, Embed))
        self.matrices = [w for op in self.graph.operations if isinstance(op, Linear) for w in op.weights]
        self.rates = self.graph.steering_weights()
        self.floats = [w for w in self.graph.weights if w not in {self.embedding, *self.matrices}]  # norms, biases, ...
        # A tied head is not stored again if it would be stored exactly as the embedding is. For a native model this is known
        # when its embedding is stored, which therefore comes first.
        self.tied = bool(checkpoint.config.get("tie_word_embeddings")) and not self.storage.native
        self.report = QuantizeReport()
        self.read_s, self.job_s = 0.0, 0.0  # seconds of jobs: of reading, and of all
        sizes = {name: int(np.prod(spec.shape)) for name, spec in self.graph.weights.items()}
        self.report.parameters = sum({self.sources[name]: size for name, size in sizes.items()}.values())
        self._work = {
            name: size * (_FITTED_WORK if self.storage.fitted and name in self.inside() else 1)
            for name, size in sizes.items()
        }
        self._done = 0
        if options.method == "int4" and self.storage.fitted:
            self._shift_norms()
        self._hint_at_ternary()

    def _hint_at_ternary(self) -> None:
        """Note if the matrices of the first and the last layer are ternary, which tells that the checkpoint is."""
        if self.storage.native or self.options.method == "float" or not self.inside():
            return
        inside = [name for name in self.inside() if name not in self.rates]
        ends = {name.split(".layers.")[-1].split(".")[0] for name in (inside[0], inside[-1])}
        names = [name for name in inside if name.split(".layers.")[-1].split(".")[0] in ends]
        with self.watch.phase("reading"):
            found = is_ternary([_maker(self.checkpoint, self.sources[name]) for name in names])
        if found:
            self.note(ternary_hint(self.checkpoint.source, self.options))

    def _shift_norms(self) -> None:
        """Move factors into norms where float16 could not hold the scales of the matrices that read them."""
        factors = norm_shifts(self.graph, self.inside(), tensor_loader(self.checkpoint, self.sources))
        for name in (name for name in self.floats if name in factors):
            self.note(
                f"{self.checkpoint.source}: tensor {name} is stored times {factors[name]:g}, and the matrices that read it "
                "are divided by that, so that float16 holds their scales; the model is the same"
            )
        if factors:
            self.checkpoint = scaled(self.checkpoint, {self.sources[name]: one for name, one in factors.items()})

    def _add(self, name: str, scheme: Scheme, parts: Mapping[str, Array], note: str = "") -> None:
        if note:
            self.note(note)
        shape = self.graph.weights[name].shape
        with self.watch.phase("writing"):
            self.writer.add(name, scheme, shape, parts, embedding=name == self.embedding)
        self.stored[name] = scheme
        if isinstance(scheme, TernaryScheme | Int4Scheme):
            self.report.group_size = max(self.report.group_size, scheme.group_size)
        self.report.stored_bytes += sum(part.nbytes for part in scheme.parts(shape).values())
        self.report.methods[scheme.kind] = self.report.methods.get(scheme.kind, 0) + 1
        self._done += self._work[name]
        self.progress(name, self._done, sum(self._work.values()) - (self._work[self.head] if self.tied else 0))

    def note(self, text: str) -> None:
        """Log a sentence about the result, and keep it for the report."""
        log.warning("%s", text)
        self.report.notes.append(text)

    def _add_squares(self, squares: tuple[float, float]) -> None:
        self.report.squared_error += squares[0]
        self.report.squared_weights += squares[1]

    def add_fitted(self, name: str, matrix: F32, statistics: Statistics | None) -> F32:
        """Fit and write one matrix, and return the dense matrix float32 [out, in] that is stored."""
        scheme = self.options.fitted_scheme
        assert scheme is not None
        fitted = fit(matrix, scheme, f"{self.checkpoint.source}: tensor {self.sources[name]}", statistics)
        self._add(name, *fitted)
        dense = fitted.scheme.open(name, matrix.shape, fitted.parts).dense()
        self._add_squares(error_squares(matrix, dense))
        return dense

    def outside(self) -> list[str]:
        """Return the names of embedding, head (unless it is the embedding) and small tensors, in the bundle's order."""
        apart = {*self.floats, *([] if self.tied else [self.head])}
        rest = [name for name in self.graph.weights if name in apart]
        return rest if self.embedding in self.stored else [self.embedding, *rest]

    def inside(self) -> list[str]:
        """Return the names of the layers' matrices, in the bundle's order."""
        return [name for name in self.matrices if name != self.head]

    def _role(self, name: str) -> Role:
        """Return the role of a matrix in the model."""
        if name in (self.embedding, self.head):
            return "embedding" if name == self.embedding else "head"
        return "steering" if name in self.rates else "inside"

    def _scheme(self, name: str) -> MatrixScheme | None:
        """Return the scheme that a tensor is quantized to, or None if it keeps its floats."""
        if name in self.floats:
            return None
        return self.storage.scheme(self._role(name), self.checkpoint.tensors[self.sources[name]])

    def _job(self, name: str, scheme: MatrixScheme) -> Job:
        source = self.sources[name]
        return Job(
            make=_maker(self.checkpoint, source),
            where=f"{self.checkpoint.source}: tensor {source}",
            scheme=scheme,
            fitted=not self.storage.native,
            otherwise=self.storage.otherwise.get(self._role(name)),
        )

    def add(self, names: list[str], keep: str = "") -> Int8Weight | None:
        """Quantize and write tensors, in the order of ``names``. Return the tensor ``keep`` if it is int8."""
        kept = None
        schemes = {name: self._scheme(name) for name in names}
        jobs = [self._job(name, scheme) for name, scheme in schemes.items() if scheme]
        results = map(run_job, jobs) if self.pool is None else self.pool.map(run_job, jobs)
        for name, scheme in schemes.items():
            if scheme is None:
                self._add_floats(name)
                continue
            result = next(results)
            self.read_s, self.job_s = self.read_s + result.read_s, self.job_s + result.seconds
            self._add_squares(result.squares)
            if result.process != os.getpid():
                self.report.worker_bytes[result.process] = result.peak_bytes
            if isinstance(result.scheme, FloatScheme):
                self._add_floats(name)
                continue
            if name == keep and isinstance(result.scheme, Int8Scheme):
                kept = Int8Weight(codes=result.parts["codes"], scale=result.parts["scale"])
            self._add(name, result.scheme, result.parts, result.note)
            del result
        assert next(results, None) is None  # lets the pool's map run to its end
        return kept

    def _add_floats(self, name: str) -> None:
        with self.watch.phase("reading"):
            values = _load(self.checkpoint, self.sources[name])
        self._add(name, FloatScheme(dtype=values.dtype.name), {"values": values})

    def add_tied_embedding(self) -> None:
        """Write the embedding of a native model with a tied head, and store a ternary one once."""
        if self.storage.native and self.checkpoint.config.get("tie_word_embeddings"):
            self.add([self.embedding])
            self.tied = isinstance(self.stored[self.embedding], TernaryScheme)

    def _load_float(self, name: str) -> F32:
        with self.watch.phase("reading"):
            return tensor_loader(self.checkpoint, self.sources)(name)

    def add_layers_calibrated(self, ids: NDArray[np.int32], embedding: Int8Weight) -> None:
        """Run the float model and the model quantized so far in step on ids int32 [B, T], and quantize each layer.

        Each matrix is fitted so that its quantized inputs give the float model's outputs.
        """
        interpreter = BatchInterpreter(fuse_linears(self.graph), self._load_float)
        exact, rough = interpreter.start(ids), interpreter.start(ids)
        for index, op in enumerate(interpreter.graph.operations):
            if op.weight_names and op.weight_names[0] == self.head:
                break
            if isinstance(op, Linear):
                target = exact[op.inputs[0]]
                codes, scale = quantize_rows(rough[op.inputs[0]])
                source = codes * scale
                stream = _residual_stream(interpreter.graph, op.outputs[0])
                statistics = Statistics(
                    gram=(source.T @ source).astype(np.float64),
                    cross=(target.T @ source).astype(np.float64),
                    drift=((exact[stream] - rough[stream]).T @ source).astype(np.float64) if stream else None,
                )
                for output, weight, bias in zip(op.outputs, op.weights, op.biases, strict=True):
                    matrix = interpreter.load_tensor(weight)
                    shift = interpreter.load_tensor(bias) if bias else np.float32(0)
                    exact[output] = target @ matrix.T + shift
                    rough[output] = source @ self.add_fitted(weight, matrix, statistics).T + shift
            else:
                interpreter.apply(op, exact, len(ids))
                if isinstance(op, Embed):
                    rough[op.outputs[0]] = embedding.rows(ids.reshape(-1)) * np.float32(op.scale)
                else:
                    interpreter.apply(op, rough, len(ids))
            interpreter.drop_dead(index, exact, rough)


def _residual_stream(graph: Graph, output: str) -> str | None:
    """Return the name of the value that a linear's output is added to, or None if it is not added to one."""
    for op in graph.operations:
        if isinstance(op, Add) and output in op.inputs:
            return next(name for name in op.inputs if name != output)
    return None


def quantize(
    checkpoint: Checkpoint,
    output: Path,
    options: QuantizeOptions,
    *,
    vocab_limit: int,
    calibration: NDArray[np.int32] | None = None,
    pool: WorkerPool | None = None,
    progress: Progress = silent,
) -> QuantizeReport:
    """Quantize ``checkpoint`` into the bundle ``output``. The bundle is written completely or not at all.

    Args:
        vocab_limit: number of ids that the tokenizer has.
        calibration: ids int32 [B, T] whose activations guide planes and int4 codes; None fits the weights alone.
        pool: quantizes several tensors at once; None: this process quantizes them one by one. The bytes are the same.
            Calibrated matrices are always computed in this process, one after the other.
        progress: called after each tensor with its name, and the work done and in all: the parameters, those of matrices to
            which codes are fitted a hundredfold.

    Raises:
        BundleError: the checkpoint is damaged or incomplete, or its parts do not match; the message names file and tensor.
        UnsupportedError: the family or the type of a tensor is not supported, or a tensor is not ternary with ``planes`` 0.
        UsageError, EdgedecError: the output cannot be written, or a worker was killed; no partial output remains.
    """
    vocab = checkpoint.config["vocab_size"]
    if vocab_limit > vocab:
        raise BundleError(f"{checkpoint.source}: the tokenizer has {vocab_limit} ids, the model only {vocab}")
    watch = Stopwatch("writing")
    with BundleWriter.create(output) as writer:
        with watch.phase("quantizing"):
            run = _Run(checkpoint, writer, options, pool, progress, watch)
            writer.require_inputs(run.graph)
            run.add_tied_embedding()
            if calibration is not None and run.storage.fitted:
                embedding = run.add(run.outside(), keep=run.embedding)
                assert embedding is not None
                run.add_layers_calibrated(calibration, embedding)
            else:
                run.add([*run.outside(), *run.inside()])
        writer.finish(
            config=dict(checkpoint.config) | {"tie_word_embeddings": run.tied},
            quantization={
                "method": options.method,
                "planes": options.planes,
                **({"tied": True} if options.ties else {}),
                "group_size": run.report.group_size,
                "calibration_tokens": 0 if calibration is None else int(calibration.size),
                "bits_per_weight": round(run.report.bits_per_weight, 4),
                "parameters": run.report.parameters,
            },
            tokens=Tokens(size=vocab_limit, bos=checkpoint.bos_token_id, eos=checkpoint.eos_token_ids),
            tokenizer_json=checkpoint.tokenizer_json,
            chat_template=checkpoint.chat_template,
            tokenizer_identity=tokenizer_identity(checkpoint.tokenizer_json),
        )
    with watch.phase("reading back"):
        bundle = Bundle.open(output, verify=True)
        bundle.check(build_graph(bundle.config))
    run.report.seconds = _divided(watch, run)
    return run.report


def _divided(watch: Stopwatch, run: _Run) -> dict[str, float]:
    """Return the wall time by what it was spent on. Time in which jobs ran is divided as the jobs' own time is."""
    spent = watch.seconds()
    if run.job_s:
        watch.move("quantizing", "reading", min(run.job_s, spent["quantizing"]) * run.read_s / run.job_s)
    spent = watch.seconds()
    return {name: spent.get(name, 0.0) for name in ("reading", "quantizing", "writing", "reading back")}
