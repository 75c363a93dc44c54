/* How many cores' worth of time the control groups of this process allow. */
#ifndef NYB_BASE_QUOTA_H
#define NYB_BASE_QUOTA_H

/* Cores, rounded up; 0: no limit. The lowest of our group and all above it, v2 (cpu.max) or v1
 * (cpu.cfs_quota_us). */
int quota_cores(void);
/* The same for another /sys/fs/cgroup and another /proc/self/cgroup, for tests. */
int quota_cores_in(const char *mount, const char *self);

#endif
