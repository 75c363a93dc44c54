#!/usr/bin/env bash
# Install what is missing on Debian 12 or Ubuntu 24.04: install-deps.sh build | ci
# As root, or with sudo. Nothing is asked of the network when everything is there.
set -euo pipefail

build=(gcc libc6-dev cmake ninja-build pkg-config libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev
       libhwloc-dev liburing-dev
       libmicrohttpd-dev libgnutls28-dev libyaml-dev libcurl4-gnutls-dev libcmocka-dev
       python3 python3-jinja2 scdoc xz-utils)
# Optional: libopenmpi-dev, for ranks on several machines; the build leaves the MPI plug-in out where it is missing.
ci=(clang clang-format valgrind git openmpi-bin libopenmpi-dev iproute2 curl gnuplot-nox)

wanted=("${build[@]}")
if [ "${1:-build}" = ci ]; then
    wanted+=("${ci[@]}")
    # The runtime of the packaged clang: sanitizers and libFuzzer.
    version=$(clang --version 2>/dev/null | sed -n 's/.*clang version \([0-9]*\).*/\1/p')
    wanted+=("libclang-rt-${version:-14}-dev")
fi

missing=()
for package in "${wanted[@]}"; do
    status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
    [ "$status" = "install ok installed" ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

# A compiler or cmake that was installed by other means serves as well.
needed=()
for package in "${missing[@]}"; do
    case $package in
        gcc | cmake | python3 | clang | git | valgrind | curl) command -v "$package" >/dev/null && continue ;;
        gnuplot-nox) command -v gnuplot >/dev/null && continue ;;
        clang-format) command -v clang-format >/dev/null && continue ;;
        ninja-build) command -v ninja >/dev/null && continue ;;
    esac
    needed+=("$package")
done
[ ${#needed[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "nybble: these packages are missing, and there is no sudo to install them: ${needed[*]}" >&2; exit 1; }
    as_root=(sudo)
fi
echo "installing ${needed[*]}"
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${needed[@]}" >/dev/null
