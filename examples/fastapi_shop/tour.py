import asyncio

import httpx
from shop import app


async def main() -> None:
    transport = httpx.ASGITransport(app)
    client = httpx.AsyncClient(transport=transport, base_url="http://shop")
    async with app.router.lifespan_context(app), client as http:
        print((await http.post("/orders/7?cents=42000")).json())  # -> order-7
        print((await http.post("/orders/7?cents=42000")).status_code)  # -> 409
        print((await http.get("/orders/7")).json())  # -> waiting for approval
        print((await http.get("/orders/7/receipt?seconds=0.1")).status_code)  # -> 504
        await http.post("/orders/7/approval")
        print((await http.get("/orders/7/receipt")).json())  # -> receipt for 7 over 420.00
        print((await http.post("/orders/7/approval")).status_code)  # -> 409
        unknown = [
            await http.get("/orders/8"),
            await http.post("/orders/8/approval"),
            await http.get("/orders/8/receipt"),
        ]
        print([answer.status_code for answer in unknown])  # -> [404, 404, 404]
        print((await http.post("/orders/no id?cents=1")).status_code)  # -> 422


asyncio.run(main())
