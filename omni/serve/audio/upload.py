"""A form with a file."""

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from omni.errors import InputError, shortened
from omni.serve.body import Call
from omni.serve.errors import HttpError
from omni.serve.options import ServeOptions

_MAX_FIELDS = 64
_MAX_TEXT = 2**16
"""Bytes of a field beside the file."""


async def read_upload(call: Call, options: ServeOptions) -> tuple[bytes, dict[str, str]]:
    """The content of `file`, and the other fields; of a field of several values, `NAME[]`, all by commas. Raises InputError."""
    if "multipart/form-data" not in call.request.headers.get("content-type", ""):
        raise HttpError(415, "invalid_content_type", "body", "is no form", "send multipart/form-data with a file")
    try:
        form = call.replayed().form(max_files=1, max_fields=_MAX_FIELDS, max_part_size=_MAX_TEXT)
        async with form as read:
            file = read.get("file")
            if not isinstance(file, UploadFile):
                raise InputError("file", "is missing", "give a file with sound")
            if (file.size or 0) > options.max_upload_bytes:
                problem = f"is larger than {options.max_upload_bytes:,} bytes"
                raise HttpError(413, "file_too_large", "file", problem, "split it over several requests")
            fields: dict[str, list[str]] = {}
            for name, value in read.multi_items():
                if name != "file" and isinstance(value, str):
                    fields.setdefault(shortened(name), []).append(value)
            return await file.read(), {name: ",".join(values) for name, values in fields.items()}
    except HTTPException as error:
        raise HttpError(400, "invalid_form", "body", f"is no form ({shortened(error.detail)})", "correct it") from error
