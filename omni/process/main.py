"""The main function of an engine's process."""

import faulthandler
import gc
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

import torch

from omni.checkpoint import Checkpoint
from omni.device import open_device
from omni.engine import Engine, build_engine, check_pipeline, check_shapes, device_of
from omni.frontend.host_rules import HostRulesBuilder
from omni.ipc import Channel, ChannelClosed, Codec
from omni.ipc.memory import OutputRing
from omni.kernels import CompileProcesses, hash_triton, process_count
from omni.parallel.rendezvous import RankResources
from omni.process.early import has_nvidia_driver
from omni.process.errors import ErrorData
from omni.process.imports import import_code
from omni.process.logs import LogSender
from omni.process.messages import (
    Closed,
    FromEngine,
    ProcessFailed,
    RankDescriptor,
    Ready,
    Start,
    TextVocabulary,
    ToEngine,
)
from omni.process.server import EngineEnd, EngineServer
from omni.process.turn_watch import TurnWatch, turn_limit
from omni.timeline.trace import Trace
from omni.utils.docstrings import skip_docstrings
from omni.utils.interrupts import ignore_interrupts

RING_BYTES = 32 * 2**20
"""Memory for arrays in outputs on their way. 16 requests with 0.3 s of sound each take 0.5 MB."""


def main(descriptor: int, model: Sequence[str]) -> None:
    """descriptor: the socket to the user's process. model: as in `EngineProcess`; empty for none. Exits the interpreter."""
    ignore_interrupts()
    with suppress(OSError):  # output of a plugin must not come between the bytes of `omni run --out -`
        os.dup2(2, 1)
    if has_nvidia_driver():
        hash_triton()
    compile_processes = _compile_processes()
    skip_docstrings()
    if model:
        import_code(*model)
    # Excludes imported objects from garbage collection.
    gc.freeze()
    gc.enable()
    sends: Codec[FromEngine] = Codec(FromEngine)
    channel: EngineEnd = Channel(socket.socket(fileno=descriptor), sends, Codec(ToEngine))
    server = EngineServer(channel)
    logging.getLogger().addHandler(LogSender(server.log))
    status = 1
    try:
        _serve(channel, sends, server, compile_processes)
        status = 0
    except ChannelClosed:
        pass  # there is no process to report to
    except BaseException as error:
        with suppress(Exception):  # the outputs that are left may be the cause
            server.finish()
        _report(channel, error)
    _exit(status)


def _compile_processes() -> CompileProcesses | None:
    """Started before it is known whether there are kernels to compile: they import Triton while this one imports a model's code."""
    if not (has_nvidia_driver() and process_count(None)):
        return None
    try:
        return CompileProcesses()
    except OSError:  # the start tries again, and reports it
        return None


def _report(channel: EngineEnd, error: BaseException) -> None:
    with suppress(ChannelClosed):
        channel.send(ProcessFailed(ErrorData.of(error)))


def _exit(status: int) -> NoReturn:
    with suppress(OSError):
        sys.stderr.flush()
    # Without the interpreter's own end, which would wait for threads of plugins.
    os._exit(status)


def _end_hung(channel: EngineEnd, error: BaseException) -> NoReturn:
    """Runs in another thread while the loop hangs. Prints the stack of the loop."""
    faulthandler.dump_traceback()
    _report(channel, error)
    _exit(1)


def _serve(
    channel: EngineEnd, sends: Codec[FromEngine], server: EngineServer, compile_processes: CompileProcesses | None
) -> None:
    start, rank_resources = _receive_start(channel)
    for name, level in start.levels.items():
        logging.getLogger(name or None).setLevel(level)
    timelines: list[Trace] = []
    try:
        engine, rules = _load(channel, start, server, timelines.append, rank_resources, compile_processes)
    finally:
        if compile_processes is not None:
            compile_processes.close()
    ring, sends.ring = OutputRing.create(RING_BYTES)
    prompts = {stage: engine.longest_prompt(stage) for stage in engine.memory}
    server.finish()
    try:
        channel.send(Ready(dict(engine.memory), prompts, engine.start_report), extra=ring)
    finally:
        os.close(ring)
    cut = bool(engine.cut_stages)
    limit = turn_limit(start.options.turn_seconds, device_of(start.place).type, cut=cut)
    if limit is not None:
        TurnWatch(engine, limit, partial(_end_hung, channel), cut=cut).start()
    server.serve(engine, rules)
    error = _close(engine)
    server.finish()
    channel.send(Closed(server.state(), error, timelines[0] if timelines else None))


def _receive_start(channel: EngineEnd) -> tuple[Start, dict[str, RankResources]]:
    resources: dict[str, RankResources] = {}
    while True:
        received = channel.receive()
        assert received is not None
        message, descriptor = received
        if isinstance(message, Start):
            return message, resources
        assert isinstance(message, RankDescriptor)
        assert descriptor is not None
        own = resources.setdefault(message.stage, RankResources())
        if message.other is None:
            own.store = descriptor
        else:
            own.sockets[message.other] = socket.socket(fileno=descriptor)


def _load(
    channel: EngineEnd,
    start: Start,
    server: EngineServer,
    take_timeline: Callable[[Trace], object],
    rank_resources: Mapping[str, RankResources],
    compile_processes: CompileProcesses | None,
) -> tuple[Engine, HostRulesBuilder | None]:
    torch.set_num_threads(start.threads)
    # Opened first: importing and reading below take seconds, and a missing device is found at once.
    device = open_device(str(device_of(start.place)))
    pipeline, checkpoint = start.whole_pipeline(), Checkpoint(start.checkpoint)
    plan = check_pipeline(pipeline, start.plugins)
    rules = _RulesBuilding(channel)
    rules.start()
    if start.options.load_format == "auto":
        check_shapes(plan, checkpoint, start.plugins, start.options)
    engine = build_engine(
        plan,
        checkpoint,
        start.plugins,
        device,
        start.options,
        command_queue=server,
        place=start.place,
        share=start.share,
        take_timeline=take_timeline,
        rank_resources=rank_resources,
        compile_processes=compile_processes,
    )
    try:
        return engine, rules.result()
    except BaseException:
        engine.close()
        raise


class _RulesBuilding(threading.Thread):
    """Receives the vocabulary, and prepares the rules about text, while weights are read. Nothing else receives meanwhile."""

    def __init__(self, channel: EngineEnd) -> None:
        super().__init__(name="omni-rules", daemon=True)
        self._channel = channel
        self._rules: HostRulesBuilder | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            received = self._channel.receive()
            assert received is not None
            assert isinstance(received[0], TextVocabulary), "it follows the start"
            vocabulary = received[0].vocabulary()
            self._rules = HostRulesBuilder(vocabulary) if vocabulary is not None else None
        except BaseException as error:
            self._error = error

    def result(self) -> HostRulesBuilder | None:
        self.join()
        if self._error is not None:
            raise self._error
        return self._rules


def _close(engine: Engine) -> ErrorData | None:
    try:
        engine.close()
    except BaseException as error:
        return ErrorData.of(error)
    return None
