/* nets/nets.h -- networks that the sweep compiles: those that come with Quern, and random ones of ordinary layers
** A network is made of its number alone: the same number gives the same network on every machine.
*/
#ifndef NETS_NETS_H
#define NETS_NETS_H
#include <stdbool.h>
#include <stdint.h>

#include "quern/quern.h"

enum { NET_NAME = 96, NET_INPUTS = 2 };

/* The expressions of a network in a model that has begun. */
struct net {
  quern_tensor *loss, *out;
  quern_tensor *inputs[NET_INPUTS]; /* of integers: below `below` */
  int64_t below[NET_INPUTS];
  char text[1024]; /* its layers, for people */
};

/* ---- networks that come with Quern (models.c) --------------------------------------------------------------------- */

/* How many there are, and which are in the short list: a network of each kind. small: those that are run, by the
** interpreter and the evaluator too. */
int nets_models(bool small);
bool nets_model_is_short(int i, bool small);
void nets_model_name(int i, bool small, char name[NET_NAME]);
void nets_model(struct net *net, quern_model *model, int i, bool small);

/* ---- random ones (random.c) --------------------------------------------------------------------------------------- */

/* small: for the interpreter and the evaluator. */
void nets_random(struct net *net, quern_model *model, uint64_t seed, bool small);

#endif
