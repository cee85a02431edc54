"""The part of a worker that holds models and executes orders; the same in every pool.

A load or an unload may be executed by another thread than the calls. They are of different models, and the table of
models is only changed by single operations.
"""

import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

from gpuyard.plan.workers.order import Order, OrderKind, Reply
from gpuyard.plan.workers.packed import Packed, pack
from gpuyard.plan.workers.runtimes import LoadedModel, load


class ModelHost:
    """The models of one worker."""

    def __init__(self) -> None:
        self._held: dict[str, LoadedModel] = {}
        self._told: set[tuple[str, str]] = set()
        """Errors seen before: of many calls that fail for one reason, only the first prints a traceback."""

    def execute(self, order: Order, pack: Callable[[Any], Packed] = pack) -> Reply:
        """Execute an order and return the reply. An exception or an unpicklable result is a failed reply."""
        began = perf_counter()
        try:
            result = self._do(order)
            took = perf_counter() - began
            return Reply(order.operation, took, None, None if order.question is None else pack(result))
        except BaseException as error:  # a model that calls sys.exit() has failed, and the worker goes on
            words = str(error).strip() or "no reason given"
            if (order.model, words) not in self._told:
                self._told.add((order.model, words))
                traceback.print_exc(file=sys.stderr)
            return Reply(order.operation, perf_counter() - began, f"{type(error).__name__}: {words}")

    def _do(self, order: Order) -> Any:
        match order.kind:
            case OrderKind.LOAD:
                self._held[order.model] = load(order)
            case OrderKind.UNLOAD:
                self._held.pop(order.model).close()
            case OrderKind.CALL:
                assert order.question is not None
                results = {node: packed.unpack() for node, packed in order.question.results.items()}
                question = replace(order.question, results=results)
                return self._held[order.model].call(question, order.seconds)
        return None
