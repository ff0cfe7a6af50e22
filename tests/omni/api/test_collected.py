"""Generators and coroutines that are collected while they are suspended: their blocks end at any point of any thread."""

from pathlib import Path

from tests.support.echo_omni import run_program

_PROGRAM = """
import asyncio, gc
from omni import AsyncOmni
from tests.support.echo_family import echo_plugins
from tests.support.echo_omni import ENDLESS, opened

def read(omni):
    with omni.generate("abc", sampling=ENDLESS) as stream:
        yield from stream

def opening():
    with opened(model) as omni:
        yield omni.generate("abc", stream=False)

async def waiting():
    async with AsyncOmni(model, device="cpu", plugins=echo_plugins()) as omni:
        await asyncio.Future()

def dropped(suspended):
    cycle = [suspended]
    cycle.append(cycle)

def collect_in(owner, name):
    real = getattr(owner, name)
    def inside(*arguments, **named):
        gc.collect()
        return real(*arguments, **named)
    setattr(owner, name, inside)

model = {model!r}
gc.disable()
"""


def ran(model: Path, code: str) -> str:
    done = run_program(_PROGRAM.replace("{model!r}", repr(str(model))) + code)
    assert not done.stderr
    return done.stdout


def test_a_stream_ends_where_the_collecting_thread_holds_the_queue_s_lock(model: Path) -> None:
    code = """
with opened(model) as omni:
    texts = read(omni)
    next(texts)
    collect_in(omni._client.queue, "_begin_downloads")
    dropped(texts)
    del texts
    print(omni.generate("hello", stream=False).text)
"""
    assert ran(model, code) == "hello\n"


def test_a_stream_ends_where_the_collecting_thread_sends_to_the_engine(model: Path) -> None:
    code = """
with opened(model, **{"engine.process": "process", "engine.max_unread_bytes": 2**40}) as omni:
    texts = read(omni)
    next(texts)
    collect_in(omni._client.engine._supervisor.by_place["cpu"].engine._channel._sends, "encode")
    dropped(texts)
    del texts
    print(omni.generate("hello", stream=False).text)
"""
    assert ran(model, code) == "hello\n"


def test_a_model_closes_where_its_engine_s_thread_collects(model: Path) -> None:
    code = """
answers = opening()
next(answers)
omni = answers.gi_frame.f_locals["omni"]
stream = omni.generate("abc", sampling=ENDLESS)
next(stream)
collect_in(omni._client.engine, "tick")
dropped(answers)
del answers
try:
    list(stream)
except Exception as error:
    print(error)
omni.close()
print(omni.idle)
"""
    assert ran(model, code) == "stage 'engine' failed while closing: the engine was closed\nTrue\n"


def test_a_coroutine_s_model_closes_where_an_executor_s_lock_is_held(model: Path) -> None:
    """`submit` of any executor holds the lock of all executors."""
    code = """
from concurrent.futures import ThreadPoolExecutor

class Name:
    def __str__(self):
        gc.collect()
        return "name"

async def main():
    suspended = waiting()
    suspended.send(None)
    client = suspended.cr_frame.f_locals["omni"]._client
    dropped(suspended)
    del suspended
    with ThreadPoolExecutor(1, Name()) as executor:
        executor.submit(int).result()
    client.close()
    print(client.closed)

asyncio.run(main())
"""
    assert ran(model, code) == "True\n"
