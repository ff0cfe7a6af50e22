"""The commands and their options. Each command is a module of its own, imported when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from omni.cli.errors import reported
from omni.cli.new.kind import Kind
from omni.cli.options import Choices, Debug, Eager, Json, Model, with_choices
from omni.version import __version__

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"omni {__version__}")
        raise typer.Exit


@app.callback()
def omni(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Text, images and sound in, text and speech out."""


@app.command()
@with_choices
def run(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="The prompt.")],
    image: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Picture, or its URL; repeatable.")] = None,
    audio: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Recording, or its URL; repeatable.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Wav file for the speech; asks for it. `-` streams it to stdout. (default: out.wav)"
        ),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Stream 16-bit little-endian mono PCM instead of a wav, to stdout unless --out is given."
        ),
    ] = False,
    voice: Annotated[str | None, typer.Option(help="Voice of the speech; asks for it.")] = None,
    modalities: Annotated[
        str | None, typer.Option(help="Outputs, comma-separated. (default: all of the model)")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum of text tokens; of codec frames if the model only speaks.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling reproducible, at every stage.")] = None,
    n: Annotated[int, typer.Option("--n", help="Answers to the prompt; each is shown when it is complete.")] = 1,
    timeline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the timeline of all phases, for `omni timeline`.")
    ] = None,
    *,
    choices: Choices,
    eager: Eager = False,
    debug: Debug = False,
) -> None:
    """Answer a prompt: text streams to the terminal, speech goes to a wav file.

    The model gets the pictures first, then the recordings, then the prompt.
    """
    with reported(debug), choices.engine_ahead(model):
        from omni.cli.run import RunArguments, answer

        answer(
            RunArguments(
                model=model,
                prompt=prompt,
                images=tuple(image or ()),
                audios=tuple(audio or ()),
                system=system,
                out="-" if raw and out is None else out,
                raw=raw,
                voice=voice,
                modalities=tuple(name.strip() for name in modalities.split(",")) if modalities is not None else None,
                max_tokens=max_tokens,
                seed=seed,
                n=n,
                timeline=timeline,
                choices=choices.with_graphs(eager=eager),
            )
        )


_ApiKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        envvar="OMNI_API_KEY",
        help="Serve requests with this key only, sent as `Authorization: Bearer KEY`; repeatable.",
    ),
]
_ServedNames = Annotated[
    list[str] | None,
    typer.Option(
        "--name", metavar="NAME", help="The model's name in requests; repeatable. (default: its id or folder)"
    ),
]
_Voices = Annotated[
    list[str] | None,
    typer.Option(
        "--voice",
        metavar="NAME=VOICE",
        help="A further name, of OpenAI's or another, of a voice of the model; repeatable. "
        "(default: OpenAI's names stand for the model's voices in turn)",
    ),
]
_MediaDomains = Annotated[
    list[str] | None,
    typer.Option(
        "--media-domain",
        metavar="DOMAIN",
        help="Fetch pictures and sound from this domain (`.example.com`: and below it); repeatable. "
        "(default: none is fetched)",
    ),
]


_Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=VALUE",
        help="A further limit or waiting time of the server, such as max_sessions=64; repeatable. docs/serving.md lists "
        "them.",
    ),
]


@app.command()
@with_choices
def serve(
    model: Model,
    host: Annotated[str | None, typer.Option(help="Address to listen at. (default: 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one. (default: 8000)")] = None,
    api_keys: _ApiKeys = None,
    names: _ServedNames = None,
    voices: _Voices = None,
    max_requests: Annotated[
        int | None, typer.Option(help="Answers under way at once; more are refused with 503. (default: 512)")
    ] = None,
    max_body_bytes: Annotated[int | None, typer.Option(help="Size of one request. (default: 64 MiB)")] = None,
    media_domains: _MediaDomains = None,
    media_folder: Annotated[
        Path | None,
        typer.Option("--media-folder", metavar="DIR", help="Open files below it by their path. (default: none)"),
    ] = None,
    drain_seconds: Annotated[
        int | None, typer.Option(help="Wait so long for answers under way after SIGTERM. (default: 30)")
    ] = None,
    bounds: _Limits = None,
    client_priority: Annotated[
        bool, typer.Option("--client-priority", help="Let requests give a `priority`, which can displace others.")
    ] = False,
    timeline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the timeline of all phases, for `omni timeline`.")
    ] = None,
    *,
    choices: Choices,
    eager: Eager = False,
    debug: Debug = False,
) -> None:
    """Serve a model to clients of OpenAI's API. Needs `pip install 'omni-stages[serve]'`."""
    with reported(debug):
        from omni.cli.serve import ServeArguments, check_extra, voice_table
        from omni.cli.serve import serve as run_server

        check_extra()
        limits: dict[str, object] = {
            "host": host,
            "port": port,
            "api_keys": api_keys or None,
            "model_names": names or None,
            "voices": voice_table(voices or ()) or None,
            "max_requests": max_requests,
            "max_body_bytes": max_body_bytes,
            "drain_seconds": drain_seconds,
            "client_priority": client_priority,
        }
        arguments = ServeArguments(
            model=model,
            choices=choices.with_graphs(eager=eager),
            limits=limits,
            bounds=tuple(bounds or ()),
            media_domains=tuple(media_domains or ()),
            media_folder=media_folder,
            timeline=timeline,
        )
        with choices.engine_ahead(model):
            run_server(arguments)


@app.command()
def timeline(
    trace: Annotated[Path, typer.Argument(metavar="FILE", help="Written by `omni run --timeline`.")],
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw some steps instead: a .png, or a .html to zoom in.")
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="Stage of the drawn steps. (default: the one with the most)")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="How many steps to draw. (default: 3)")] = None,
    first: Annotated[
        int | None, typer.Option("--from", help="The first step to draw. (default: around the median one)")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Report the times of a run: phases, device idle between steps, overlap, host time. Or draw it."""
    with reported(debug):
        from omni.cli.timeline import check_options, draw_steps, show

        check_options(picture, {"--stage": stage, "--steps": steps, "--from": first}, as_json=as_json)
        if picture is not None:
            draw_steps(trace, picture, stage=stage, steps=steps or 3, first=first)
        else:
            show(trace, as_json=as_json)


@app.command()
@with_choices
def explain(
    model: Model,
    measure: Annotated[
        bool, typer.Option("--measure", help="Load and measure the stages, and show the division of memory.")
    ] = False,
    *,
    choices: Choices,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the stages, every setting with its origin, memory and connectors.

    Reads no weight and needs no device, unless it measures.
    """
    with reported(debug):
        from omni.cli.explain import explain as show

        show(
            model,
            choices,
            measure=measure,
            as_json=as_json,
        )


@app.command()
@with_choices
def doctor(
    model: Annotated[
        str | None, typer.Argument(help="A checkpoint folder or a hub id, to check its requirements.")
    ] = None,
    *,
    choices: Choices,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check the environment, devices, plugins, and a model's requirements. Exit code 1 if there is a problem."""
    with reported(debug):
        from omni.cli.doctor import examine

        healthy = examine(model, choices, as_json=as_json)
        raise typer.Exit(0 if healthy else 1)


@app.command()
def plugins(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with tracebacks.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="With tracebacks.")] = False,
    debug: Debug = False,
) -> None:
    """List the plugins, their entries, and the errors of broken ones."""
    with reported(debug):
        from omni.cli.plugins import show

        show(as_json=as_json, verbose=verbose)


@app.command()
def tiny(
    directory: Annotated[Path, typer.Argument(help="Folder to write; created if missing.")],
    family: Annotated[
        str | None, typer.Option(help="Model family; `omni plugins` lists them. (default: the only one)")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
    debug: Debug = False,
) -> None:
    """Write a tiny checkpoint with random weights, in the published format, for trials without a download."""
    with reported(debug):
        from omni.cli.tiny import write

        write(directory, family, seed)


@app.command()
def new(
    kind: Annotated[Kind, typer.Argument(help="Kind of plugin.")],
    name: Annotated[str, typer.Argument(help="Name to register: lowercase letters, digits and underscores.")],
    into: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the new folder omni-NAME.")] = Path(),
    debug: Debug = False,
) -> None:
    """Write a plugin to start from: a distribution with code, tests and README, which passes its tests once installed."""
    with reported(debug):
        from omni.cli.new.distribution import write

        write(kind, name, into)
