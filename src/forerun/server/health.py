"""What /health tells: what runs, how it is doing, and everything that is not as one might expect, in words."""

from __future__ import annotations

from typing import Any

from forerun.assembly import Assembly
from forerun.controllers import Goodput
from forerun.core.model import UNLIMITED
from forerun.server.service import Service


def status_of(service: Service) -> str:
    """`ok`, `stopping`, or `stalled` where a step has taken too long."""
    if service.stopping:
        return "stopping"
    return "stalled" if service.llm.worker.busy_s > service.settings.stall_timeout else "ok"


def health(service: Service) -> dict[str, Any]:
    """Everything there is to know about a server."""
    assembly, engine = service.assembly, service.assembly.engine
    info = engine.target.info
    return {
        "status": status_of(service),
        "model": assembly.model,
        "names": list(service.names),
        "backend": assembly.backend,
        "weights": dict(assembly.weights),
        "context": engine.context,
        "batch_invariant": info.batch_invariant,
        "speculation": {
            "draft": assembly.draft,
            "drafts": list(engine.speculator.methods),
            "verifier": assembly.verifier,
            "verifiers": list(engine.verifiers),
            "controller": engine.speculator.controller.name,
            "lossy": assembly.lossy or None,
        },
        "pass_ms": pass_ms(service),
        "memory": _memory(assembly),
        "requests": {
            "running": len(engine.scheduler.live),
            "waiting": service.turns.waiting + len(engine.scheduler.waiting),
            "max_batch": assembly.max_sequences,
            "max_queue": service.settings.max_queue,
            "prefixes_kept": len(engine.prefixes),
            "step_s": round(service.llm.worker.busy_s, 3),
        },
        "limitations": limitations(service),
    }


def pass_ms(service: Service) -> list[dict[str, float]] | None:
    """What the controller takes a pass to cost, by rows: measured at load, and corrected by each pass since. None where no
    controller looks at the clock."""
    controller = service.assembly.engine.speculator.controller
    if not isinstance(controller, Goodput):
        return None
    return [{"rows": rows, "ms": round(seconds * 1e3, 3)} for rows, seconds in controller.curve.as_dict().items()]


def limitations(service: Service) -> list[str]:
    """What does not hold here, or does not run as it was asked for."""
    assembly, engine = service.assembly, service.assembly.engine
    info, found = engine.target.info, list(assembly.notes)
    if assembly.lossy:
        found.append(f"{assembly.lossy} lets texts differ from the model's own.")
    if not info.batch_invariant:
        found.append(
            f"the {assembly.backend} backend is not batch-invariant: a text may differ with what runs beside it, and no "
            "prefixes are kept."
        )
    if not info.rollback:
        found.append(f"{assembly.model} cannot take tokens back, so nothing is drafted.")
    elif not info.tree:
        found.append(f"the {assembly.backend} backend checks chains only, so drafts are cut to one branch.")
    if not engine.speculator.methods:
        found.append("nothing is drafted: the server was started without a draft.")
    for name, failure in engine.speculator.failures().items():
        found.append(f"the drafter {name} failed and is not asked any more ({type(failure).__name__}: {failure}).")
    if assembly.template is None:
        found.append(f"{assembly.model} has no chat template: chat completions take one user message, as plain text.")
    if not assembly.uses_predictions:
        found.append("`prediction` is refused: no draft of this server looks at it.")
    if len(service.settings.keys) > 1 and service.settings.share_memory:
        found.append("all API keys share drafts and prefixes (--share-memory).")
    if engine.context < info.context:
        found.append(
            f"the memory for keys and values holds texts of {engine.context} tokens; the model could hold {info.context}."
        )
    return found


def _memory(assembly: Assembly) -> dict[str, Any]:
    """Memory for keys and values in use and budgeted; null where nobody divides it."""
    target = assembly.engine.target
    room = target.room()
    if room.total >= UNLIMITED.total:
        return {"kv_tokens_used": None, "kv_tokens_budget": None, "kv_bytes": None}
    return {
        "kv_tokens_used": (room.total - room.free) * room.page,
        "kv_tokens_budget": room.total * room.page,
        "kv_bytes": getattr(target, "kv_bytes", None),
    }
