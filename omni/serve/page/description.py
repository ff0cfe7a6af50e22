"""`GET /v1/omni/pipeline`: the features of the model that the page offers, and the stages that it draws."""

import msgspec
from starlette.responses import Response

from omni.pipeline import Pipeline
from omni.serve.body import Call
from omni.serve.responses import json_response
from omni.serve.server import Server


class StageDescription(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str


class EdgeDescription(msgspec.Struct, frozen=True, kw_only=True):
    producer: str
    consumer: str


class PipelineDescription(msgspec.Struct, frozen=True, kw_only=True):
    """model: its name in requests. modalities: of answers by default. voices: as in `GET /v1/audio/voices`, the default first.
    takes_media: whether messages may have pictures and sound, as far as the pipeline shows it. stages: in the order in which
    payloads pass them."""

    model: str
    family: str
    modalities: tuple[str, ...]
    voices: tuple[str, ...]
    takes_media: bool
    stages: tuple[StageDescription, ...]
    edges: tuple[EdgeDescription, ...]


async def pipeline(server: Server, call: Call) -> Response:
    omni = server.omni
    graph = omni.pipeline
    stages = tuple(StageDescription(name=stage.name, kind=stage.kind) for stage in graph.stages)
    return json_response(
        PipelineDescription(
            model=server.names[0],
            family=graph.family,
            modalities=omni.modalities,
            voices=server.voices.names,
            takes_media=_takes_media(graph),
            stages=stages,
            edges=tuple(EdgeDescription(producer=edge.producer, consumer=edge.consumer) for edge in graph.edges),
        )
    )


def _takes_media(graph: Pipeline) -> bool:
    """False for a model with a single stage that only writes. True for others: the front end refuses media that the model does not
    accept."""
    return len(graph.stages) > 1 or any(output.modality == "audio" for output in graph.outputs)
