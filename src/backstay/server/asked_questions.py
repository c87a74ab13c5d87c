"""Questions between nodes: a node without a worker for a query or a validator has it answered by a worker of another node.

The history of the run is in the database, where the other node reads it. So only the question travels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backstay.kernel.message import Refused
from backstay.kernel.values import SECOND
from backstay.protocol.native.nodes import AskWorker, LinkFailed, Misdirected, Owner, WorkerSaid, understands
from backstay.server.http_errors import Stopping
from backstay.server.remote_queries import PendingQuery, queue_of_run

if TYPE_CHECKING:
    from backstay.server.server import Server

NO_WORKER = "no_worker_here"
AGAIN = SECOND // 4  # after which nodes that had no worker are asked again


class AskedQuestions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def ask(self, question: PendingQuery) -> None:
        """Ask all other nodes, again and again, while no worker here has the question."""
        server = self._server
        asked = AskWorker(inquiry=question.inquiry, upto=question.history[-1].sequence)
        while question.owner is None and not question.answer.done():
            for node in self._others():
                try:
                    said = await server.links.call(node, asked)
                except Refused as refusal:
                    if refusal.reason != NO_WORKER:
                        server.questions.refuse(question, refusal)
                        return
                except (LinkFailed, Misdirected):
                    continue
                else:
                    is_query = question.inquiry.kind == "query"
                    server.questions.answer(question, said.value if is_query else said.objection)
                    return
            pause = server.engine.world.future()
            server.engine.world.at(server.now + AGAIN, lambda pause=pause: pause.done() or pause.set_result(None))
            await pause

    def _others(self) -> list[Owner]:
        """The other nodes that can be called."""
        return [
            Owner(node.id, node.facts.address, 0)
            for node in self._server.node.shards.others
            if node.facts.address is not None and understands(node.facts.speaks)
        ]

    async def answer(self, asked: AskWorker) -> WorkerSaid:
        """Have a question of another node answered by a worker here. Refuses if there is none that would take it at once."""
        server = self._server
        if server.draining:
            raise Stopping
        inquiry = asked.inquiry
        history = await server.engine.store.history(inquiry.run_key, limit=asked.upto)
        if not history or not server.questions.has_worker(inquiry, queue_of_run(history)):
            raise Refused(NO_WORKER, "no worker that could answer is linked to this node")
        said = await server.questions.inquire(inquiry, history, False, only_here=True)
        return WorkerSaid(value=said) if inquiry.kind == "query" else WorkerSaid(objection=said)
