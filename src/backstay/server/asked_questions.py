"""Questions between nodes: a node without a worker for a query or a validator has it answered by a worker of another node.

The history of the run is in the database, where the other node reads it. So only the question travels.
"""

from __future__ import annotations

from typing import Protocol

from backstay.engine.engine import Engine
from backstay.engine.node import Node
from backstay.kernel.message import Refused
from backstay.kernel.values import SECOND
from backstay.link.nodes import NodeLinks
from backstay.protocol.native.nodes import AskWorker, LinkFailed, Misdirected, Owner, WorkerSaid, understands
from backstay.server.http_errors import Stopping
from backstay.server.remote_queries import PendingQuery, RemoteQueries, queue_of_run

NO_WORKER = "no_worker_here"
AGAIN = SECOND // 4  # after which nodes that had no worker are asked again


class AskingServer(Protocol):
    """The part of a server that asks workers of other nodes, and answers for its own."""

    draining: bool
    links: NodeLinks
    questions: RemoteQueries
    engine: Engine
    node: Node


class AskedQuestions:
    def __init__(self, server: AskingServer) -> None:
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
            server.engine.world.at(
                server.engine.world.now() + AGAIN, lambda pause=pause: None if pause.done() else pause.set_result(None)
            )
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
