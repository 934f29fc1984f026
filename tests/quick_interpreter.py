"""Triton's interpreter without what it does for nothing, or again in every call.

Kernels compute the same numbers in half the time. Only Triton's private names are touched: where a
release has no such name, its interpreter is as slow as ever.
"""

from __future__ import annotations

import functools
import inspect
import linecache
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as interpreter
from triton.language.semantic import TritonSemantic


def quicken() -> None:
    _leave_out_unread_checks()
    _keep_dtypes()
    _keep_block_types()
    _keep_shapes()
    _broadcast_no_equals()
    _pass_the_semantic()
    _widen_by_a_shift()
    _rewrite_once()
    _patch_once_a_launch()
    _sum_in_steps()
    _overflow_in_silence()


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


def _keep_block_types() -> None:
    """The type of a block is made again for each value, with its shape checked and its name. Its
    sizes are kept beside them: the shape is no plain tuple, and slow to compare."""
    original: Callable[..., None] = tl.block_type.__init__
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    @functools.wraps(original)
    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = (*shape,)
        if isinstance(element_ty, tl.pointer_type) or not all(type(n) is int for n in sizes):
            original(self, element_ty, shape)
            return
        key = (element_ty.name, *sizes)
        if key not in known:
            original(self, element_ty, shape)
            known[key] = vars(self) | {"_sizes": sizes}
        vars(self).update(known[key])

    tl.block_type.__init__ = init
    slow: Callable[[Any, Any], Any] = tl.block_type.with_element_ty

    def with_element_ty(self: Any, scalar_ty: Any) -> Any:
        sizes = vars(self).get("_sizes")
        return slow(self, scalar_ty) if sizes is None else tl.block_type(scalar_ty, [*sizes])

    tl.block_type.with_element_ty = with_element_ty


def _keep_shapes() -> None:
    """The shape of a tensor is a tuple of constants, each with a type: the same for all tensors of
    a shape."""
    if [*inspect.signature(tl.tensor.__init__).parameters] != ["self", "handle", "type"]:
        return
    original: Callable[..., None] = tl.tensor.__init__
    known: dict[Any, tuple[Any, Any]] = {}

    @functools.wraps(original)
    def init(self: Any, handle: Any, type: Any) -> None:
        sizes = vars(type).get("_sizes") if type.is_block() else ()
        if sizes not in known:
            original(self, handle, type)
            if sizes is not None:
                known[sizes] = (self.shape, self.numel)
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = known[sizes]

    tl.tensor.__init__ = init


def _broadcast_no_equals() -> None:
    """Each operand of an operation is compared with the other, size by size, and with the result:
    most are of the same shape."""
    original: Callable[..., Any] = getattr(TritonSemantic, "broadcast_impl_value", None)
    if original is None:
        return

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        sizes = vars(lhs.type).get("_sizes")
        if sizes is not None and sizes == vars(rhs.type).get("_sizes"):
            return lhs, rhs
        return original(self, lhs, rhs)

    TritonSemantic.broadcast_impl_value = broadcast


def _pass_the_semantic() -> None:
    """Each call of a function of Triton's copies its named arguments without one of them, and then
    with it."""
    if not hasattr(interpreter, "_patch_attr") or not hasattr(interpreter, "interpreter_semantic"):
        return
    if [*inspect.signature(interpreter._patch_attr).parameters][:3] != ["obj", "name", "member"]:
        return
    semantic = interpreter.interpreter_semantic
    checks = tl.core.builtin(lambda: None).__code__  # only that it is given

    def patch(obj: Any, name: str, member: Callable[..., Any], builder: Any, scope: Any) -> None:
        if getattr(member, "__code__", None) is checks:
            member = member.__wrapped__  # type: ignore[attr-defined]

        def called(*given: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return member(*given, **named)

        scope.set_attr(obj, name, called)

    interpreter._patch_attr = patch


def _widen_by_a_shift() -> None:
    """A bfloat16 is the upper half of a float32. Only Triton's way knows of subnormal ones."""
    original: Callable[..., Any] = getattr(interpreter, "_convert_float", None)
    if original is None:
        return

    def convert(given: Any, input_dtype: Any, output_dtype: Any, rounding_mode: Any) -> Any:
        if (input_dtype.name, output_dtype.name) == ("bf16", "fp32"):
            bits = np.ascontiguousarray(given).view(np.uint16)
            if not ((bits & 0x7F80 == 0) & (bits & 0x7F != 0)).any():
                return bits.astype(np.uint32) << np.uint32(16)
        return original(given, input_dtype, output_dtype, rounding_mode)

    interpreter._convert_float = convert


def _rewrite_once() -> None:
    """A function's source is found by a search of all modules, and twice; what the texts of several
    kernels share is rewritten for each."""
    rewriter = getattr(interpreter, "FunctionRewriter", None)
    used = ("rewrite_ast", "_find_def", "_prepare_source", "_transform_ast")
    if not all(hasattr(rewriter, name) for name in used):
        return
    original: Callable[[Any], Any] = rewriter.rewrite_ast
    known: dict[Any, CodeType] = {}

    def rewrite_ast(self: Any) -> Any:
        fn = self.fn
        bare = fn.__code__.replace(co_filename="", co_firstlineno=1, co_linetable=b"")
        key = (bare, repr(fn.__annotations__), repr(fn.__defaults__))
        if key not in known:
            lines = linecache.getlines(fn.__code__.co_filename)
            if fn.__closure__ or not lines:
                return original(self)
            known[key] = _rewritten(self, lines)
        for name, value in vars(interpreter).items():
            fn.__globals__.setdefault(name, value)
        made: dict[str, Any] = {}
        exec(known[key], fn.__globals__, made)
        return made[fn.__name__]

    rewriter.rewrite_ast = rewrite_ast


def _rewritten(rewriter: Any, lines: list[str]) -> CodeType:
    """The statement that defines a function as the interpreter runs it. lines: of its file."""
    code = rewriter.fn.__code__
    lines = inspect.getblock(lines[code.co_firstlineno - 1 :])
    rewriter.filename, rewriter.def_lineno = code.co_filename, rewriter._find_def(lines)
    rewriter.def_file_lineno = code.co_firstlineno + rewriter.def_lineno - 1
    tree = rewriter._transform_ast(rewriter._prepare_source(lines))
    made: CodeType = compile(tree, code.co_filename, "exec")
    return made


def _patch_once_a_launch() -> None:
    """triton.language is patched again for each call of a function of its own, such as `tl.sum`,
    and what is to be patched is looked for among all its names each time."""
    if not hasattr(interpreter, "_patch_lang") or not hasattr(interpreter, "_LangPatchScope"):
        return
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    modules = (tl, tl.core)
    patched: list[Any] = []
    known: dict[tuple[Any, ...], list[tuple[Any, str, Any]]] = {}

    def patch_once(function: Any) -> Any:
        names = function.__globals__.values()
        wanted = [m for m in modules if m not in patched and any(m is value for value in names)]
        if not wanted:
            return interpreter._LangPatchScope()
        key = (*patched, None, *wanted)
        patched.extend(wanted)
        if key not in known:
            scope = patch(function)
            known[key] = [(held, name, vars(held)[name]) for held, name, _ in scope._changes]
            return scope
        scope = interpreter._LangPatchScope()
        for change in known[key]:
            if vars(change[0]).get(change[1]) is not change[2]:
                scope.set_attr(*change)
        return scope

    @functools.wraps(launch)
    def launched(self: Any, *given: Any, **named: Any) -> Any:
        patched.clear()
        return launch(self, *given, **named)

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launched


def _sum_in_steps() -> None:
    """A sum of floats, and a running one, adds in log2(n) steps, as a GPU's does; NumPy's adds one
    by one, and loses more."""
    scans = getattr(interpreter, "ScanOps", None)
    if scans is not None and hasattr(scans, "cumsum"):
        scans.cumsum = _running_sum(scans.cumsum)
    folds = getattr(interpreter, "ReduceOps", None)
    if folds is not None and hasattr(folds, "sum"):
        folds.sum = _halving_sum(folds.sum)


def _running_sum(in_order: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def cumsum(self: Any, given: Any) -> Any:
        found = given.handle.data
        if found.dtype.kind != "f":
            return in_order(self, given)
        found, step = np.moveaxis(found, self.axis, -1).copy(), 1
        while step < found.shape[-1]:
            found[..., step:] = found[..., step:] + found[..., :-step]
            step *= 2
        return [self.to_tensor(np.moveaxis(found, -1, self.axis), dtype=given.dtype)]

    return cumsum


def _halving_sum(in_order: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def summed(self: Any, given: Any) -> Any:
        found = given.handle.data
        if found.dtype.kind != "f" or self.axis is None:
            return in_order(self, given)
        found = np.moveaxis(found, self.axis, 0)
        while len(found) > 1:  # a power of two
            found = found[: len(found) // 2] + found[len(found) // 2 :]
        found = found + found.dtype.type(0)  # where NumPy's sums begin: none is -0.0
        kept = np.moveaxis(found, 0, self.axis) if self.keep_dims else found[0]
        return self.to_tensor(kept, given.dtype)

    return summed


def _overflow_in_silence() -> None:
    """A GPU says nothing of an infinity or a NaN, which kernels make in masked lanes, and of
    infinite inputs everywhere; NumPy warns of each."""
    launch = interpreter.GridExecutor.__call__

    @functools.wraps(launch)
    def launched(self: Any, *given: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            return launch(self, *given, **named)

    interpreter.GridExecutor.__call__ = launched
