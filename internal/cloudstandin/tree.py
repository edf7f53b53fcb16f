"""Asks an installed gcloud about its commands, without a network, for the tests of this package.

usage: python3 -S tree.py SDK < {"extract": ["tasks queues create", ...], "parse": [["tasks", "list"], ...]}

It writes an object of two answers. "extract" has the arguments of commands, as the file tree.json has them. For "parse",
gcloud's own parser reads command lines. The answer has for each of them what the parser says against it, or "".
"""

import contextlib
import io
import json
import os
import sys
import tempfile

sdk = sys.argv[1]
sys.path[:0] = [os.path.join(sdk, 'lib'), os.path.join(sdk, 'lib', 'third_party')]
os.environ['CLOUDSDK_CORE_DISABLE_PROMPTS'] = '1'

# gcloud's global flags that everybody may know; the others are hidden, or for those who develop it.
GLOBAL = ['--account', '--billing-project', '--configuration', '--flatten', '--format', '--help',
          '--impersonate-service-account', '--project', '--quiet', '--verbosity']


def node(argument):
    """Returns an argument, or a group of them, as tree.json has it; None for one that is hidden or global."""
    if hasattr(argument, 'arguments'):
        members = [m for m in map(node, argument.arguments) if m]
        if not members:
            return None
        group = {'group': members}
        if argument.is_required:
            group['required'] = True
        if argument.is_mutex:
            group['mutex'] = True
        return group
    names = list(argument.option_strings or [])
    if argument.is_positional:
        leaf = {'positional': argument.metavar or argument.dest.upper()}
    elif argument.is_hidden or names[0] in hidden_flags or names[0] == '-h':
        return None
    else:
        leaf = {'flags': names}
    if argument.is_required:
        leaf['required'] = True
    if argument.nargs is not None:
        leaf['nargs'] = str(argument.nargs)
    if argument.choices:
        leaf['choices'] = sorted(map(str, argument.choices))
    return leaf


def find(path):
    """Returns the command of a path, or None."""
    element = top
    for word in path.split():
        element = element.LoadSubElement(word) if hasattr(element, 'LoadSubElement') else None
        if element is None:
            return None
    return element


with tempfile.TemporaryDirectory() as folder:
    os.environ['CLOUDSDK_CONFIG'] = folder
    from googlecloudsdk import gcloud_main
    from googlecloudsdk.core import config, log

    cli = gcloud_main.CreateCLI([])
    top = cli._TopElement()
    asked = json.load(sys.stdin)
    hidden_flags = set()
    everywhere = [a for a in top.ai.arguments if not hasattr(a, 'arguments')]
    flags = [node(a) for a in everywhere if set(a.option_strings or []) & set(GLOBAL)]
    hidden_flags = {f for a in everywhere for f in a.option_strings or []} | {'--trace-token'}
    tree = {'version': config.CLOUD_SDK_VERSION, 'global': flags, 'commands': {}}
    for path in asked['extract']:
        command = find(path)
        if command is not None and not command.is_group:
            tree['commands'][path] = [n for n in map(node, command.ai.arguments) if n]
    parsed = []
    for line in asked['parse'] or []:
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                log.Reset(said, said)
                cli._CLI__parser.parse_args(line)
            parsed.append('')
        except SystemExit:
            parsed.append(said.getvalue() or 'it ends')
        except Exception as e:  # what a type says of a value
            parsed.append(str(e) or type(e).__name__)
    json.dump({'extract': tree, 'parse': parsed}, sys.stdout)
