"""Access to the page: for holders of its token, from this machine, and from no other page.

The address that `prgec ui` prints carries the token once; from then on a cookie does, which scripts cannot read and
other sites cannot send.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

_TOKEN_BYTES = 32
_HEADERS = {
    # Everything comes from here; a page of another site can neither frame nor script it.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def new_token() -> str:
    """Return a token nobody can guess."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


class Guard:
    """Refuses requests before the application sees them.

    Args:
        app: The application.
        port: Where it listens, on the loopback.
        token: Secret that every request must carry.
    """

    def __init__(self, app: ASGIApp, port: int, token: str) -> None:
        self._app, self._token = app, token
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self._origins = {f"http://{host}" for host in self._hosts}
        # Pages on other ports of this machine have cookies of their own.
        self._cookie = f"prgec-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        answer = self._refusal(scope) or self._entrance(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                fixed = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *fixed]
            await send(message)

        await (answer or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return what a request is answered that is none of ours."""
        headers = Headers(scope=scope)
        if headers.getlist("host") not in [[host] for host in self._hosts]:
            return self._refuse(scope, 421, "this is another host's page")
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins:
            return self._refuse(scope, 403, "the request comes from another page")
        if scope["method"] not in ("GET", "HEAD") and origin is None:
            return self._refuse(scope, 403, "the request does not say which page it comes from")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and scope["method"] not in ("GET",):
            return self._refuse(scope, 403, "the request comes from another page")
        return None

    def _entrance(self, scope: Scope) -> Response | None:
        """Return what a request without the cookie is answered: the way in, to the one who has the token."""
        headers = Headers(scope=scope)
        cookies = cookie_parser(headers.get("cookie", ""))
        if self._is_token(cookies.get(self._cookie, "")):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = dict(query).get("token", "")
        if scope["method"] != "GET" or not self._is_token(token):
            return self._refuse(scope, 401, "this page opens with the address that prgec ui prints, token and all")
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        path = scope["path"] if scope["path"] == "/" else "/" + scope["path"].lstrip("/\\")
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return answer

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token.encode())

    def _refuse(self, scope: Scope, status: int, what: str) -> Response:
        logger.info("%s %s: %d %s", scope["method"], scope["path"], status, what)
        return PlainTextResponse(what + "\n", status, {"Connection": "close"})
