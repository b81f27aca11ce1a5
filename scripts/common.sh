# Shared by the scripts beside it; source it, don't run it. Leaves the shell in the project's root.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd -- "$root"
venv=$root/.venv
unset PYTHONDONTWRITEBYTECODE # hundreds of tests start a process: each would compile all anew

say() { printf '%s\n' "$*" >&2; }
die() { say "$(basename -- "$0"): $*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# debian_install PACKAGE…: true when the packages were installed (Debian and its kin, as root).
debian_install() {
    have apt-get && [ "$(id -u)" = 0 ] || return 1
    say "installing $*"
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install "$@"; } \
        >/dev/null 2>&1
}

# hash_of FILE…: one hash over names and contents of those that exist.
hash_of() {
    local file
    for file in "$@"; do
        if [ -f "$file" ]; then printf '%s\0' "$file"; fi
    done | xargs -0 -r sha256sum | sha256sum | cut -d ' ' -f 1
}
