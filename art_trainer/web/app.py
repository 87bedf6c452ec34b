"""An application that shows nothing but its routes, and tells its errors in one form."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from art_trainer.web.errors import ApiError
from art_trainer.web.guard import Guard, Rules


def guarded_app(rules: Rules, known: str, **options: Any) -> FastAPI:
    """Make an application without documentation pages, behind a guard.

    Args:
        rules: Who may come in.
        known: What there is, for who asks for something else.
        **options: For ``FastAPI``.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, **options)
    app.add_middleware(Guard, rules=rules)

    async def tell_unknown(request: Request, fault: Exception) -> Response:
        assert isinstance(fault, HTTPException)
        words = ApiError(f"{fault.detail}: this server has {known}", code="not_found")
        return JSONResponse(words.to_json(), fault.status_code)

    app.add_exception_handler(ApiError, _tell)
    app.add_exception_handler(RequestValidationError, _tell_invalid)
    app.add_exception_handler(HTTPException, tell_unknown)
    return app


async def _tell(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, ApiError)
    return JSONResponse(fault.to_json(), fault.status)


async def _tell_invalid(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, RequestValidationError)
    first = fault.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return JSONResponse(ApiError(f"{place}: {first['msg']}", param=place).to_json(), 422)
