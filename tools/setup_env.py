#!/usr/bin/env python3
"""Set up the environment for mmrla: ``python3 tools/setup_env.py``; see --help.

Any version of Python, 2 included, can parse this file. It starts tools/dev/environment.py
with a supported version, or says in one line which versions are supported.
"""
import os
import subprocess
import sys

# The pinned numpy needs 3.11.
PYTHONS = ((3, 11), (3, 12), (3, 13))
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'dev', 'environment.py')
QUESTION = 'import sys; print("%d.%d" % sys.version_info[:2])'


def names():
    """Return the names of supported interpreters, the newest first."""
    return ['python%d.%d' % pair for pair in reversed(PYTHONS)]


def version_of(command):
    """Return the version of an interpreter, or None if it does not start.

    The command python3.11 may be a shim of pyenv for a version that is not installed.
    """
    try:
        process = subprocess.Popen([command, '-c', QUESTION], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
    except OSError:
        return None
    answer = process.communicate()[0].decode().strip()
    return answer if process.returncode == 0 else None


def fitting_python():
    """Return the command of a supported interpreter, or None."""
    if sys.version_info[:2] in PYTHONS:
        return sys.executable
    for name in names():
        if version_of(name) == name[len('python'):]:
            return name
    return None


def main():
    """Run the set-up with a supported interpreter."""
    python = fitting_python()
    if python is None:
        sys.exit('setup: this is Python %s (%s), and none of %s starts. Install one of them: '
                 'Debian, Ubuntu: apt-get install %s-venv %s-dev; conda: conda create -n mmrla '
                 'python=3.11.' % (sys.version.split()[0], sys.executable, ', '.join(names()),
                                   names()[0], names()[0]))
    os.execvp(python, [python, SCRIPT] + sys.argv[1:])


if __name__ == '__main__':
    main()
