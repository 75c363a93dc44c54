/* What a client may have meant that asked for a path which is not here. */
#ifndef NYB_SERVER_NEAR_H
#define NYB_SERVER_NEAR_H

/* The path that it probably means: /v1 is missing, there twice, or before a path without; slashes too many; a
 * few letters are wrong; another server's name for the same, or base address. NULL: no idea. Lives for ever.
 */
const char *near_path(const char *path);
/* Why no server of this kind has it: a clause. NULL: no idea. Lives for ever. */
const char *near_reason(const char *path);

#endif
