"""A request as pages see it: ids from its path, its query, its form; never a path of this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from prgec.errors import PrgecError
from prgec.serve.ui.view import page
from prgec.serve.web.body import length_of, read_body
from prgec.serve.web.refusal import HttpError

MOST_FORM_BYTES = 64 << 10
_MOST_FIELDS = 200
_FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class PageRequest:
    """A request.

    Attributes:
        ids: Parts of its path.
        query: Its query string.
        form: Values of the form, by name.
        seen: Version of what its sender has.
    """

    ids: Mapping[str, str]
    query: Sequence[tuple[str, str]]
    form: Mapping[str, str]
    seen: str

    def first(self, name: str) -> str:
        """Return a value of the query; empty where there is none."""
        return next((value for key, value in self.query if key == name), "")

    def every(self, name: str) -> list[str]:
        """Return all values of that name in the query."""
        return [value for key, value in self.query if key == name]


Page: TypeAlias = Callable[[PageRequest], Response]


def endpoint(answer: Page) -> Callable[[Request], Awaitable[Response]]:
    """Return what Starlette calls for a page: it reads the request, and turns errors into pages."""

    async def answered(request: Request) -> Response:
        try:
            form = await _form(request) if request.method == "POST" else {}
            content = PageRequest(
                request.path_params, request.query_params.multi_items(), form, request.headers.get("if-none-match", "")
            )
            return await run_in_threadpool(answer, content)
        except HttpError as error:
            # The rest of a refused body is not read.
            closing = {"Connection": "close"} if error.status in (400, 411, 413, 415) else None
            return page("error.html.jinja", error.status, closing, title="This did not work", error=error.what)
        except PrgecError as error:
            return page("error.html.jinja", 400, title="This did not work", error=str(error))
        except (ClientDisconnect, TimeoutError):
            return Response(status_code=408, headers={"Connection": "close"})

    return answered


async def _form(request: Request) -> dict[str, str]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise HttpError(415, f"a form is sent as {_FORM}")
    data = await read_body(request, length_of(request, MOST_FORM_BYTES))
    try:
        pairs = parse_qsl(
            data.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(data),
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError as error:
        raise HttpError(400, "the form cannot be read") from error
    return dict(pairs)


def go(place: str) -> Response:
    """Return the answer to a form that was taken: look there."""
    return RedirectResponse(place, 303)


def fragment(template: str, request: PageRequest, shown: object, *, is_done: bool, **values: object) -> Response:
    """Return a part of a page, or that it is as it was.

    Args:
        template: The part.
        request: The request.
        shown: The content that may change.
        is_done: Whether it will stay as it is.
        values: For the template.
    """
    version = hashlib.sha256(repr(shown).encode()).hexdigest()[:16]
    headers = {"ETag": f'"{version}"', **({"X-Done": "1"} if is_done else {})}
    if request.seen == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return page(template, 200, headers, **values)
