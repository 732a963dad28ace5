/* quern/quern.h -- everything public */
#ifndef QUERN_QUERN_H
#define QUERN_QUERN_H
#include "quern/context.h"
#include "quern/dtype.h"
#include "quern/eager.h"
#include "quern/env.h"
#include "quern/grad.h"
#include "quern/graph.h"
#include "quern/npy.h"
#include "quern/profile.h"
#include "quern/program.h"
#include "quern/status.h"
#include "quern/tensor.h"
#include "quern/version.h"
#endif
