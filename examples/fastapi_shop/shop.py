from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from backstay import (
    AsyncBackstay,
    RequestRefused,
    WorkflowAlreadyStarted,
    WorkflowNotFound,
    WorkflowNotRunning,
    activity,
    query,
    signal,
    wait,
    workflow,
)


@activity(retries=5)
async def charge(order_id: str, cents: int) -> str:
    return f"receipt for {order_id} over {cents / 100:.2f}"


@workflow
class Order:
    approved = False
    receipt: str | None = None

    @signal
    def approve(self) -> None:
        self.approved = True

    @query
    def status(self) -> str:
        return self.receipt or ("approved" if self.approved else "waiting for approval")

    async def handle(self, order_id: str, cents: int) -> str | None:
        if cents > 10_000 and not await wait.step(lambda: self.approved, timeout="3d"):
            return None
        self.receipt = await charge(order_id, cents)
        return self.receipt


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with AsyncBackstay("shop.db", register=[Order, charge]) as backstay:
        app.state.backstay = backstay
        yield


app = FastAPI(lifespan=lifespan)


def engine(request: Request) -> AsyncBackstay:
    return request.app.state.backstay


Engine = Annotated[AsyncBackstay, Depends(engine)]

STATUS: dict[type[Exception], int] = {
    WorkflowNotFound: 404,
    WorkflowAlreadyStarted: 409,
    WorkflowNotRunning: 409,
}


@app.exception_handler(RequestRefused)
async def refused(request: Request, error: RequestRefused) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, STATUS.get(type(error), 422))


@app.exception_handler(TimeoutError)
async def unfinished(request: Request, error: TimeoutError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 504)


@app.post("/orders/{id}", status_code=202)
async def create(id: str, cents: int, backstay: Engine) -> str:
    handle = await backstay.start(Order, f"order-{id}", id, cents)
    return handle.id


@app.post("/orders/{id}/approval", status_code=204)
async def approve(id: str, backstay: Engine) -> None:
    await backstay.handle(Order, f"order-{id}").signal(Order.approve)


@app.get("/orders/{id}")
async def show(id: str, backstay: Engine) -> str:
    return await backstay.handle(Order, f"order-{id}").query(Order.status)


@app.get("/orders/{id}/receipt")
async def receipt(id: str, backstay: Engine, seconds: float = 30) -> str | None:
    return await backstay.handle(Order, f"order-{id}").result(timeout=seconds)
