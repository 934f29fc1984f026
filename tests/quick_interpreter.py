"""Triton's interpreter without what it does for nothing, or again in every call.

Kernels compute the same numbers in half the time. Only Triton's private names are touched: where a
release has no such name, its interpreter is as slow as ever.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as interpreter
from triton.language.semantic import TritonSemantic


def quicken() -> None:
    _leave_out_unread_checks()
    _keep_dtypes()
    _patch_once_a_launch()
    _sum_in_steps()


def _leave_out_unread_checks() -> None:
    """Each sum, difference and product of integers is computed again in 64 bits, for an assertion
    that is only made in debug mode."""
    name = "binary_op_sanitize_overflow_impl"
    if hasattr(TritonSemantic, name) and not interpreter.InterpreterOptions().debug:
        setattr(TritonSemantic, name, lambda self, lhs, rhs, binary_op: None)


def _keep_dtypes() -> None:
    """The table of NumPy's dtypes is made again for each look into it."""
    original: Callable[[Any], np.dtype[Any]] = getattr(interpreter, "_get_np_dtype", None)
    if original is None:
        return
    known: dict[str, np.dtype[Any]] = {}

    def get_np_dtype(given: Any) -> np.dtype[Any]:
        one = given.element_ty if isinstance(given, tl.block_type) else given
        if isinstance(one, tl.pointer_type):
            return original(one)
        if one.name not in known:
            known[one.name] = original(one)
        return known[one.name]

    interpreter._get_np_dtype = get_np_dtype


def _patch_once_a_launch() -> None:
    """triton.language is patched again for each call of a function of its own, such as `tl.sum`."""
    if not hasattr(interpreter, "_patch_lang") or not hasattr(interpreter, "_LangPatchScope"):
        return
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[Any] = set()

    def patch_once(function: Any) -> Any:
        if function in patched:
            return interpreter._LangPatchScope()
        patched.add(function)
        return patch(function)

    @functools.wraps(launch)
    def launched(self: Any, *given: Any, **named: Any) -> Any:
        patched.clear()
        return launch(self, *given, **named)

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launched


def _sum_in_steps() -> None:
    """A running sum of floats adds in log2(n) steps, as a GPU's does; NumPy's adds one by one, and
    loses more."""
    scans = getattr(interpreter, "ScanOps", None)
    if scans is None or not hasattr(scans, "cumsum"):
        return
    in_order = scans.cumsum

    def cumsum(self: Any, given: Any) -> Any:
        found = given.handle.data
        if found.dtype.kind != "f":
            return in_order(self, given)
        found, step = np.moveaxis(found, self.axis, -1).copy(), 1
        while step < found.shape[-1]:
            found[..., step:] = found[..., step:] + found[..., :-step]
            step *= 2
        return [self.to_tensor(np.moveaxis(found, -1, self.axis), dtype=given.dtype)]

    scans.cumsum = cumsum
