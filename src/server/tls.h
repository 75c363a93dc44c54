/* The certificate and the key of HTTPS. */
#ifndef NYB_SERVER_TLS_H
#define NYB_SERVER_TLS_H

#include "base/err.h"

struct tls {
    char *cert, *key; /* PEM; NULL: plain HTTP */
};

/* Read both files and see that they belong together. Both paths NULL: plain HTTP; one of them: an error. */
enum nyb_code tls_open(struct tls *t, const char *cert_file, const char *key_file,
                       struct nyb_err *err) NYB_MUST_CHECK;
/* Also after an error. The key's bytes are wiped. */
void tls_close(struct tls *t);

#endif
