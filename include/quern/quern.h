/* quern/quern.h -- everything public */
#ifndef QUERN_QUERN_H
#define QUERN_QUERN_H
#include "quern/checkpoint.h"
#include "quern/config.h"
#include "quern/context.h"
#include "quern/data.h"
#include "quern/dtype.h"
#include "quern/eager.h"
#include "quern/env.h"
#include "quern/grad.h"
#include "quern/graph.h"
#include "quern/models.h"
#include "quern/nn.h"
#include "quern/npy.h"
#include "quern/optim.h"
#include "quern/profile.h"
#include "quern/program.h"
#include "quern/safetensors.h"
#include "quern/status.h"
#include "quern/tensor.h"
#include "quern/tokenizer.h"
#include "quern/version.h"
#endif
