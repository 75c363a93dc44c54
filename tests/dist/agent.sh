#!/bin/sh
# What mpirun calls instead of ssh: agent.sh HOST COMMAND... The host 198.18.7.N is the network namespace
# nyb(N - 1), which gets a host name of its own so that Open MPI takes it for another machine, and cores of its own as far
# as there are as many (HOSTS_CORES each, one without it): two hosts on one would wait for each other.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
number=${host##*.}
space=nyb$((number - 1))
each=${HOSTS_CORES:-1}
core=$(((number - 1) * each % $(nproc --all)))
core=$core-$((core + each - 1))
exec ip netns exec "$space" unshare --uts sh -c 'hostname "$1"; taskset -pc "$2" $$ >/dev/null 2>&1; shift 2; exec sh -c "$*"' \
    sh "$space" "$core" "$@"
