# shellcheck shell=sh
# Read by packaging/*/build.sh, called with OUTDIR: sets outdir and top, and has what they share.
set -eu

[ "$#" -eq 1 ] || { echo "usage: $0 OUTDIR" >&2; exit 2; }
mkdir -p "$1"
# shellcheck disable=SC2034 # for the script that reads this
outdir=$(cd "$1" && pwd)
top=$(cd "$(dirname "$0")/../.." && pwd)
# The distribution's own Python, whatever virtual environment this is called from.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
unset VIRTUAL_ENV PYTHONPATH PYTHONHOME

# Sets work, a folder that goes when the script ends.
make_work() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# Copies what git tracks or would track into the folder $1. A file that is deleted
# but still in the index is left out.
copy_tree() (
    cd "$top"
    # shellcheck disable=SC2016 # $file is for the inner sh
    git ls-files -z --cached --others --exclude-standard |
        xargs -0 sh -c 'for file; do [ ! -e "$file" ] || printf "%s\0" "$file"; done' sh |
        tar -c --null --no-recursion -T - | tar -x -C "$1"
)

# The version in pyproject.toml must be $2, that of the file $1.
check_version() {
    project=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$top/pyproject.toml")
    [ "$2" = "$project" ] || {
        echo "$0: $1 says $2, pyproject.toml says $project" >&2
        exit 1
    }
}
