"""Reverts an upstream fix in an installed package: one piece of one function's text is replaced, in memory alone.
A package of another version may have another text there: `needs` skips its tests."""

import __future__
import ast
import importlib.metadata
import inspect
import textwrap
import unittest


def needs(package, version):
    """Skips a test where the package is not installed, or its version begins otherwise."""
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return unittest.skip(f"{package} is not installed")
    return unittest.skipUnless(found.startswith(version), f"{package} is {found}, not {version}")


def plant(where, fixed, broken):
    """where: "module:function" or "module:Class.function". Whoever has imported the function has the bug, too."""
    module, _, path = where.partition(":")
    function = importlib.import_module(module)
    for name in path.split("."):
        function = getattr(function, name)
    function = inspect.unwrap(function)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(fixed) != 1:
        raise AssertionError(f"{where} holds {fixed!r} {source.count(fixed)} times; the installed version is another one")
    tree = ast.parse(source.replace(fixed, broken))
    tree.body[0].decorator_list = []
    namespace = dict(function.__globals__)
    code = compile(tree, f"<{where} without its fix>", "exec", __future__.annotations.compiler_flag)  # whose types are not imported
    exec(code, namespace)
    function.__code__ = namespace[function.__name__].__code__
