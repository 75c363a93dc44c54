#include "server/tls.h"

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#define PEM_MAX (1u << 20)

struct tls_pair {
    gnutls_certificate_credentials_t both;
    int uses;
};

/* Servers that renew their certificates forget it now and then. */
static void warn_of_dates(const struct tls_pair *p, const char *cert_file)
{
    gnutls_x509_crt_t *chain;
    unsigned n;
    if (gnutls_certificate_get_x509_crt(p->both, 0, &chain, &n) < 0)
        return;
    time_t now = time(NULL);
    if (n && gnutls_x509_crt_get_expiration_time(chain[0]) < now)
        log_warn("the certificate in %s has expired", cert_file);
    else if (n && gnutls_x509_crt_get_activation_time(chain[0]) > now)
        log_warn("the certificate in %s is not valid yet", cert_file);
    for (unsigned i = 0; i < n; i++)
        gnutls_x509_crt_deinit(chain[i]);
    gnutls_free(chain);
}

/* Do they belong together? */
static enum nyb_code make_pair(struct tls *t, const char *cert_file, const char *key_file,
                               struct nyb_err *err)
{
    struct tls_pair *p = mem_alloc(1, sizeof(*p));
    int result = gnutls_certificate_allocate_credentials(&p->both);
    if (result < 0) {
        free(p);
        return err_set(err, NYB_E_IO, "TLS: %s", gnutls_strerror(result));
    }
    p->uses = 1;
    t->pair = p;
    const gnutls_datum_t cert = {(unsigned char *)t->cert, (unsigned)strlen(t->cert)},
                         key = {(unsigned char *)t->key, (unsigned)strlen(t->key)};
    result = gnutls_certificate_set_x509_key_mem(p->both, &cert, &key, GNUTLS_X509_FMT_PEM);
    if (result < 0)
        return err_at(err, NYB_E_ARG, cert_file, -1, "is no certificate of the key in %s: %s", key_file,
                      gnutls_strerror(result));
    warn_of_dates(p, cert_file);
    return NYB_OK;
}

enum nyb_code tls_open(struct tls *t, const char *cert_file, const char *key_file, struct nyb_err *err)
{
    size_t n;
    *t = (struct tls){0};
    if (!cert_file && !key_file)
        return NYB_OK;
    if (!cert_file || !key_file)
        return err_at(err, NYB_E_ARG, cert_file ? "tls-key" : "tls-cert", -1,
                      "--tls-cert and --tls-key belong together");
    TRY(file_read_text(cert_file, PEM_MAX, &t->cert, &n, err));
    TRY(file_read_text(key_file, PEM_MAX, &t->key, &n, err));
    return make_pair(t, cert_file, key_file, err);
}

enum nyb_code tls_renew(struct tls *t, const char *cert_file, const char *key_file, struct nyb_err *err)
{
    struct tls fresh;
    enum nyb_code code = tls_open(&fresh, cert_file, key_file, err);
    if (code == NYB_OK) {
        struct tls_pair *before = t->pair;
        t->pair = fresh.pair;
        fresh.pair = before;
    }
    tls_close(&fresh);
    return code;
}

void tls_close(struct tls *t)
{
    if (t->key)
        explicit_bzero(t->key, strlen(t->key));
    free(t->cert);
    free(t->key);
    tls_release(t->pair);
    *t = (struct tls){0};
}

struct tls_pair *tls_use(struct tls *t, void *session)
{
    if (gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, t->pair->both) < 0)
        return NULL; /* it goes on with the one of the start */
    t->pair->uses++;
    return t->pair;
}

void tls_release(struct tls_pair *p)
{
    if (!p || --p->uses > 0)
        return;
    gnutls_certificate_free_credentials(p->both);
    free(p);
}
